"""Prompt tokens are scored alike whatever the chunks; only rows that ask, only what was not scored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.plan import Admission, Plan, Slice
from octavo.sampling import prompt_scores
from octavo.sampling.prompt_scores import PromptScores
from octavo.sampling.sampled import Sampled
from octavo.types import SamplingParams

VOCAB = 12
TABLE = np.random.default_rng(0).normal(size=(VOCAB, VOCAB + 4)).astype(np.float32)
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
NOTHING = Sampled(torch.zeros(0).long(), torch.zeros(0, 1).long(), torch.zeros(0))


def run(scores, counts, row=1, prefix=2, prompt=PROMPT, **admission):
    """Read a prompt in chunks after a neighbour of `prefix` tokens; a token's logits depend on it alone."""
    entries = []
    fed = admission.get("computed", 0)
    admitted = (Admission(row, 0, SamplingParams(prompt_logprobs=2), 0, prompt, len(PROMPT), **{"computed": 0, "blocks": (), **admission}),)
    for count in counts:
        tokens = torch.tensor([0] * prefix + list(prompt[fed : fed + count]))
        plan = Plan(0, (Slice(0, 0, prefix, 0, False), Slice(row, 0, count, 0, False)), admitted=admitted)
        reading = scores.read(plan, tokens, lambda hidden: torch.from_numpy(TABLE)[hidden])
        output = NOTHING.fetch(plan, [reading]).result()
        entries += (output.prompt_logprobs or {}).get(1, [])
        admitted = ()
        fed += count
    return entries


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=8).filter(lambda counts: sum(counts) >= 8), st.sampled_from([1, 100, 1 << 20]))
def test_every_prompt_token_but_the_first_is_scored_once(counts, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_scores, "_LOGITS_BYTES", at_once)
        entries = run(PromptScores(VOCAB), counts)
    assert [entry.token_ids[0] for entry in entries] == list(PROMPT[1:])
    for before, entry in zip(PROMPT, entries):
        logits = TABLE[before, :VOCAB].astype(np.float64)
        exact = logits - np.log(np.exp(logits).sum())
        assert entry.logprobs == pytest.approx(exact[list(entry.token_ids)], abs=1e-5)
        assert entry.token_ids[1:] == tuple(np.argsort(-exact)[:2])
        assert entry.rank == (exact >= exact[entry.token_ids[0]]).sum()


def test_output_is_not_scored_and_a_resumed_sequence_goes_on_from_its_start():
    scores = PromptScores(VOCAB)
    assert len(run(scores, [8, 1, 1], prompt=(*PROMPT, 7, 7))) == 7
    assert len(run(scores, [4], computed=4)) == 3
    assert scores._readings == {}


def test_rows_that_do_not_ask_cost_nothing():
    plan = Plan(0, (Slice(0, 0, 8, 0, False),), (Admission(0, 0, SamplingParams(), 0, PROMPT, 8, 0, ()),))
    assert PromptScores(VOCAB).score(plan, None, "cpu") == {}
    other = Plan(0, (Slice(0, 0, 8, 0, False),), (Admission(0, 0, SamplingParams(prompt_logprobs=1), 1, PROMPT, 8, 0, ()),))
    assert PromptScores(VOCAB).score(other, None, "cpu") == {}


def test_a_retired_row_is_forgotten():
    scores = PromptScores(VOCAB)
    run(scores, [2])
    assert scores.score(Plan(1, (Slice(1, 1, 8, 0, False),), retired=(1,)), None, "cpu") == {}


def test_placeholders_past_the_vocabulary_are_impossible_not_an_error():
    scores = PromptScores(VOCAB)
    admission = Admission(0, 0, SamplingParams(prompt_logprobs=0), 0, (3, VOCAB + 2), 2, 0, ())
    plan = Plan(0, (Slice(0, 0, 2, 0, False),), (admission,))
    reading = scores.read(plan, torch.zeros(2, 1), lambda hidden: torch.zeros(len(hidden), VOCAB))
    (entry,) = NOTHING.fetch(plan, [reading]).result().prompt_logprobs[0]
    assert entry.token_ids == (VOCAB + 2,)
    assert entry.logprobs == (-np.inf,)


def test_a_row_given_up_in_a_step_without_prompt_tokens_is_forgotten():
    """Its next owner did not ask: a replayed step only follows."""
    scores = PromptScores(VOCAB)
    assert len(run(scores, [3])) == 3
    scores.follow(Plan(1, retired=(1,)))
    plan = Plan(2, (Slice(1, 0, 4, 0, False),), admitted=(Admission(1, 1, SamplingParams(), 0, PROMPT, len(PROMPT), 0, ()),))
    assert scores.score(plan, lambda at: torch.from_numpy(TABLE)[at], "cpu") == {}
