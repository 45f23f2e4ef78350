"""Sampling as a whole: distributions, independence of rows, order of operations, failures, resumption."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.limits import needs_vocabulary_slot
from octavo.core.plan import Plan, Slice
from octavo.sampling.grammar import Masks
from octavo.sampling.stage import load_stage
from octavo.types import SamplingParams
from tests.sampling.oracle import VOCAB, Bench, distribution, processed

BAD = ((4,), (5, 6), (7, 7, 8), (9, VOCAB + 3))


def logits_of(seed, vocab=VOCAB, scale=2.0):
    return np.random.default_rng(seed).normal(size=vocab).astype(np.float32) * scale


def chi_square_passes(counts, p):
    """Whether counts fit p at about five sigma; tokens outside the support fail at once."""
    assert counts[p == 0].sum() == 0
    n = counts.sum()
    rare = (n * p < 8) & (p > 0)
    observed = np.append(counts[(p > 0) & ~rare], counts[rare].sum())
    expected = np.append(n * p[(p > 0) & ~rare], n * p[rare].sum())
    keep = expected > 0
    value, freedom = ((observed - expected)[keep] ** 2 / expected[keep]).sum(), max(keep.sum() - 1, 1)
    return (value - freedom) / math.sqrt(2 * freedom) < 6


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 5},
        {"top_k": VOCAB},
        {"top_k": VOCAB * 3},
        {"top_p": 0.5},
        {"top_p": 1e-6},
        {"top_p": 0.9, "top_k": 12},
        {"min_p": 0.1},
        {"min_p": 0.05, "top_k": 9, "top_p": 0.8, "temperature": 1.3},
        {"min_p": 1.0},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 0.8, "top_p": 0.95},
        {"logit_bias": {3: 4.0, 5: -100.0, 8: 2.0}, "top_k": 6},
        {"allowed_token_ids": (1, 5, 9, 11), "logit_bias": {2: 100.0, 5: 1.0}},
        {"bad_token_ids": BAD, "temperature": 2.0},
        {"min_tokens": 9, "eos_token_ids": (3, 4), "stop_token_ids": (5,), "ignore_eos": True},
    ],
    ids=str,
)
def test_tokens_follow_the_distribution(fields):
    params = SamplingParams(**{"max_tokens": None, **fields})
    prompt, output, rows = (1, 2, 3, 30), (7, 5, 5, 7, 7), 3000
    bench = Bench(rows)
    logits = logits_of(1)
    for row in range(rows):
        bench.admit(row, params, prompt, output, seed=row)
    counts = np.bincount(bench.tokens({row: logits for row in range(rows)}), minlength=VOCAB)
    assert chi_square_passes(counts, distribution(logits, params, prompt, output))


def test_successive_tokens_of_one_stream_follow_the_distribution():
    bench, logits = Bench(), logits_of(2)
    bench.admit(0, SamplingParams(), seed=7)
    tokens = np.array([bench.tokens({0: logits})[0] for _ in range(3000)])
    p = distribution(logits, SamplingParams())
    assert chi_square_passes(np.bincount(tokens, minlength=VOCAB), p)
    pairs = np.bincount(tokens[:-1:2] * VOCAB + tokens[1::2], minlength=VOCAB * VOCAB)
    assert chi_square_passes(pairs, np.outer(p, p).ravel())


chance = st.floats(0.01, 1)
any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-7, 1e-3, 0.5, 1.0, 3.0, 50.0]),
    top_p=chance,
    top_k=st.sampled_from([-1, 0, 1, 3, VOCAB, 10**9]),
    min_p=st.sampled_from([0, 0.02, 0.5, 1]),
    repetition_penalty=st.sampled_from([1, 0.7, 1.4]),
    presence_penalty=st.sampled_from([0, -2, 1.5]),
    frequency_penalty=st.sampled_from([0, 0.4]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=3),
    allowed_token_ids=st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=5, max_size=30),
    bad_token_ids=st.sampled_from([(), BAD]),
    min_tokens=st.sampled_from([0, 4]),
    eos_token_ids=st.just((0, 11)),
)


def borderline(logits, params, output, token):
    """Whether a slightly looser truncation keeps the token: float32 may differ from float64 there."""
    loose = replace(params, top_p=min(1.0, params.top_p * (1 + 1e-5)), min_p=params.min_p * (1 - 1e-5))
    return distribution(logits, loose, (1, 2, 3), output)[token] > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(any_params, min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_row_depends_on_nothing_but_itself_and_stays_in_its_support(many, seed):
    together, alone = Bench(), [Bench() for _ in many]
    for row, params in enumerate(many):
        together.admit(row, params, seed=seed + row)
        alone[row].admit(7 - row, params, seed=seed + row)
    outputs = [[] for _ in many]
    for step in range(6):
        logits = {row: logits_of(seed + 31 * row + step) for row in range(len(many))}
        tokens = together.tokens(logits)
        for row, params in enumerate(many):
            assert alone[row].tokens({7 - row: logits[row]}) == [tokens[row]]
            if tokens[row] is None:  # the masks left nothing
                assert np.isneginf(processed(logits[row], params, (1, 2, 3), outputs[row]).max())
                outputs[row].append(0)
            else:
                p = distribution(logits[row], params, (1, 2, 3), outputs[row])
                assert p[tokens[row]] > 0 or borderline(logits[row], params, outputs[row], tokens[row])
                outputs[row].append(tokens[row])


@settings(max_examples=30, deadline=None)
@given(st.lists(any_params, min_size=1, max_size=7), st.integers(1, 4), st.integers(0, 2**32), st.sampled_from([None, (0,), (1, 4)]))
def test_positions_that_go_through_in_parts_come_out_as_together(many, at_once, seed, masked):
    many = [replace(params, logprobs=2) if row % 3 == 1 else params for row, params in enumerate(many)]
    benches = [Bench(), Bench(at_once=at_once)]
    for bench in benches:
        for row, params in enumerate(many):
            bench.admit(row, params, seed=seed + row)
    at = tuple(row for row in masked or () if row < len(many))
    for step in range(3):
        logits = {row: logits_of(seed + 31 * row + step) for row in range(len(many))}
        bits = torch.full((len(at), 2), 0x0F0F0F0F, dtype=torch.int32)
        whole, parts = (bench.step(logits, Masks(at, bits.clone()) if at else None) for bench in benches)
        assert parts == whole


@settings(max_examples=30, deadline=None)
@given(st.lists(any_params, min_size=1, max_size=6), st.integers(0, 2**32))
def test_work_at_all_positions_equals_work_where_it_is_wanted(many, seed):
    benches = [Bench(), Bench()]
    for bench in benches:
        for row, params in enumerate(many):
            bench.admit(row, params, seed=seed + row)
    plan = Plan(0, tuple(Slice(row, 0, 1, 0, True) for row in range(len(many))))
    for step in range(4):
        logits = torch.from_numpy(np.stack([logits_of(seed + 31 * row + step) for row in range(len(many))]))
        outputs = []
        for bench, fixed in zip(benches, (False, True)):
            recipe = bench.sampler.recipe(plan, bench.rows.held)
            recipe = recipe.everywhere() if fixed else recipe
            if recipe is None:
                assert any(params.bad_token_ids for params in many)
                return
            batch = bench.batch(range(len(many)))
            outputs.append(bench.sampler(logits.clone(), batch, bench.rows, recipe).fetch(plan).result())
            for row in range(len(many)):
                bench.lengths[row] += 1
        assert outputs[0] == outputs[1]


@settings(max_examples=30, deadline=None)
@given(any_params, st.integers(-(2**63), 2**63 - 1), st.integers(0, 7))
def test_resumed_equals_uninterrupted(params, seed, cut):
    steps = [logits_of(abs(seed) % 1000 + i) for i in range(8)]
    whole = Bench()
    whole.admit(0, params, seed=seed, index=2)
    expected = [whole.tokens({0: x})[0] for x in steps]
    if None in expected:
        return
    parts = Bench()
    parts.admit(0, params, seed=seed, index=2)
    got = [parts.tokens({0: x})[0] for x in steps[:cut]]
    parts.retire(0)
    parts.admit(3, params, output=got, seed=seed, index=2)
    assert got + [parts.tokens({3: x})[0] for x in steps[cut:]] == expected


def test_continuations_of_one_seed_differ_and_repeat():
    def texts():
        bench = Bench()
        for index in range(4):
            bench.admit(index, SamplingParams(n=4), seed=1, index=index)
        return list(zip(*(bench.tokens({row: logits_of(9) for row in range(4)}) for _ in range(12))))

    assert len(set(texts())) == 4
    assert texts() == texts()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_every_field_holds_for_every_continuation(index):
    logits = np.zeros(VOCAB, np.float32)
    logits[[4, 6, 8]] = 30, 29, 28
    cases = [
        ({"bad_token_ids": ((4,),)}, 6),
        ({"allowed_token_ids": [6, 8]}, 6),
        ({"logit_bias": {8: 50.0}}, 8),
        ({"min_tokens": 1, "eos_token_ids": (4,), "stop_token_ids": (6,)}, 8),
        ({"repetition_penalty": 9.0}, 6),
        ({"temperature": 0.01}, 4),
        ({"top_k": 1}, 4),
        ({"top_p": 0.01}, 4),
        ({"min_p": 1.0}, 4),
    ]
    bench = Bench(len(cases))
    for row, (fields, _) in enumerate(cases):
        bench.admit(row, SamplingParams(n=3, **{"temperature": 0.1, **fields}), prompt=(4,), seed=5, index=index)
    assert bench.tokens({row: logits for row in range(len(cases))}) == [token for _, token in cases]


def test_order_of_operations():
    logits = np.zeros(VOCAB, np.float32)
    logits[[1, 2, 3]] = 10, 9, 8

    def support(prompt=(20,), output=(), **fields):
        params = SamplingParams(**{"temperature": 1.0, **fields})
        bench = Bench(400)
        for row in range(400):
            bench.admit(row, params, prompt, output, seed=row)
        return set(bench.tokens({row: logits for row in range(400)}))

    assert support(top_k=2, allowed_token_ids=[2, 3, 4]) == {2, 3}  # masks come before truncation
    assert support(top_k=1, logit_bias={3: 5.0}) == {3}  # and so does the bias
    assert support(top_k=1, repetition_penalty=2.0, prompt=(1,), logit_bias={1: 9.5}) == {1}  # 19.5 / 2 > 9: biased, then penalised
    assert support(top_k=1, repetition_penalty=2.0, prompt=(1,), logit_bias={1: 7.0}) == {2}
    assert support(min_p=0.5, temperature=1.0) == {1}  # e^-1 < 0.5
    assert support(min_p=0.5, temperature=2.0) == {1, 2}  # e^-0.5 > 0.5: temperature comes before min_p
    assert support(top_k=2, top_p=0.72) == {1}  # 0.73 of what top_k left, though under 0.67 of all
    assert support(temperature=0, repetition_penalty=2.0, prompt=(1,)) == {2}  # greedy takes the processed logits

    bench = Bench()
    bench.admit(0, SamplingParams(temperature=0, logprobs=2, allowed_token_ids=[7]))
    scores = bench.step({0: logits}).logprobs[0][0]
    assert scores.token_ids == (7, 1, 2)  # log-probabilities are the model's own
    assert scores.logprobs == pytest.approx([x - np.log(np.exp(logits).sum()) for x in (0, 10, 9)], abs=1e-5)


def test_presence_and_frequency_ignore_the_prompt_and_repetition_does_not():
    logits = np.zeros(VOCAB, np.float32)
    logits[[4, 6]] = 3, 2.5
    for fields, first, second in (
        ({"presence_penalty": 2.0}, 4, 6),
        ({"frequency_penalty": 2.0}, 4, 6),
        ({"repetition_penalty": 2.0}, 6, 4),
    ):
        bench = Bench()
        bench.admit(0, SamplingParams(temperature=0, **fields), prompt=(4,))
        assert [bench.tokens({0: logits})[0] for _ in range(2)] == [first, second]


def test_greedy_row_beside_a_random_one_has_no_nan_from_banned_tokens():
    bench, logits = Bench(), logits_of(3)
    greedy = SamplingParams(temperature=0, bad_token_ids=((int(logits.argmax()),),), logprobs=3)
    bench.admit(0, greedy)
    bench.admit(1, SamplingParams(logprobs=3))
    output = bench.step({0: logits, 1: logits})
    assert output.tokens[0] == [int(np.argsort(logits)[-2])]
    assert output.failed is None
    assert all(math.isfinite(p) for entries in output.logprobs.values() for p in entries[0].logprobs)


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-5, 1e-3])
def test_tiny_temperatures_take_the_largest(temperature):
    bench, logits = Bench(), logits_of(4)
    logits[:2] = logits.max() + np.array([1, 3])
    bench.admit(0, SamplingParams(temperature=temperature))
    assert [bench.tokens({0: logits})[0] for _ in range(20)] == [1] * 20


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
@pytest.mark.parametrize("temperature", [0.01, 1e6])
def test_extremes_give_a_token(scale, temperature):
    bench = Bench()
    bench.admit(0, SamplingParams(temperature=temperature, top_p=0.9))
    assert bench.tokens({0: logits_of(5) * scale})[0] is not None


def test_greedy_takes_the_lowest_of_equals():
    bench = Bench()
    bench.admit(0, SamplingParams(temperature=0))
    assert bench.tokens({0: np.array([1, 5, 5, 2] * 10)}) == [1]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {}, {"top_p": 0.5, "top_k": 3}, {"repetition_penalty": 1.1}], ids=str)
def test_a_row_of_bad_logits_fails_alone(fields):
    good = logits_of(6)
    some, inf = good.copy(), good.copy()
    some[3], inf[3] = np.nan, np.inf
    bench = Bench()
    for row in range(6):
        more = {"allowed_token_ids": [1], "bad_token_ids": ((1,),)} if row == 4 else {}
        bench.admit(row, SamplingParams(**fields, **more, logprobs=2))
    by_row = {0: good, 1: np.full(VOCAB, np.nan), 2: some, 3: inf, 4: good, 5: good}
    output = bench.step(by_row)
    assert set(output.failed) == {1, 2, 3, 4}
    for row, part in {1: "NaN", 2: "NaN", 3: "infinite", 4: "no token"}.items():
        assert part in output.failed[row]
    assert [len(tokens) for tokens in output.tokens] == [1, 0, 0, 0, 0, 1]
    assert set(output.logprobs) == {0, 5}
    again = Bench()
    again.admit(0, SamplingParams(**fields))
    assert again.tokens({0: good})[0] == output.tokens[0][0]


def test_padded_vocabulary_and_ids_past_it_are_never_sampled():
    bench = Bench()
    wide = np.concatenate((logits_of(7), np.full(24, 50, np.float32)))
    past = {"logit_bias": {VOCAB + 2: 100.0}, "allowed_token_ids": [3, VOCAB + 2], "bad_token_ids": ((VOCAB + 2,), (1, VOCAB + 2))}
    bench.admit(0, SamplingParams(temperature=0))
    bench.admit(1, SamplingParams(top_k=5))
    bench.admit(2, SamplingParams(**past, repetition_penalty=1.2, min_tokens=3, stop_token_ids=[VOCAB + 2]), prompt=(1, VOCAB + 5))
    bench.admit(3, SamplingParams(logprobs=-1, prompt_logprobs=-1))
    for _ in range(5):
        output = bench.step({row: wide for row in range(4)})
        assert all(token < VOCAB for tokens in output.tokens for token in tokens)
        assert output.tokens[2] == [3]
        assert set(output.logprobs[3][0].token_ids) == set(range(VOCAB))


def test_only_past_ids_allowed_fails_with_a_reason():
    bench = Bench()
    bench.admit(0, SamplingParams(allowed_token_ids=[VOCAB + 1]))
    assert "no token is allowed" in bench.step({0: logits_of(1)}).failed[0]


def test_min_tokens_masks_all_ends_until_reached():
    logits = np.zeros(VOCAB, np.float32)
    logits[[7, 2, 9]] = 9, 8, 7
    bench = Bench()
    bench.admit(0, SamplingParams(temperature=0, min_tokens=5, eos_token_ids=(2, 7), stop_token_ids=[9]))
    tokens = [bench.tokens({0: logits})[0] for _ in range(6)]
    assert not {2, 7, 9} & set(tokens[:5])
    assert tokens[5] == 7


def test_bad_words_ban_the_last_id_after_its_beginning_only():
    a_b, after = np.zeros(VOCAB, np.float32), np.zeros(VOCAB, np.float32)
    a_b[5], after[6] = 9, 9
    bench = Bench()
    bench.admit(0, SamplingParams(temperature=0, bad_token_ids=((5, 6),)), prompt=(5,))
    assert bench.tokens({0: after}) == [6]  # the prompt does not begin a word
    assert bench.tokens({0: a_b}) == [5]
    assert bench.tokens({0: after}) == [0]
    assert bench.tokens({0: after}) == [6]


def test_logprobs_only_for_rows_that_ask():
    bench = Bench()
    for row, k in enumerate((None, 0, 3, None, -1)):
        bench.admit(row, SamplingParams(logprobs=k, temperature=0.8))
    by_row = {row: logits_of(row) for row in range(5)}
    output = bench.step(by_row)
    assert {i: len(entries[0].token_ids) for i, entries in output.logprobs.items()} == {1: 1, 2: 4, 4: VOCAB + 1}
    for i, (entry,) in output.logprobs.items():
        exact = by_row[i] - np.log(np.exp(by_row[i].astype(np.float64)).sum())
        assert entry.token_ids[0] == output.tokens[i][0]
        assert entry.rank == (exact >= exact[entry.token_ids[0]]).sum()
        assert entry.logprobs == pytest.approx(exact[list(entry.token_ids)], abs=1e-5)
        assert list(entry.token_ids[1:]) == np.argsort(-exact)[: len(entry.token_ids) - 1].tolist()


def test_grammar_masks_hold_for_their_positions():
    bench, logits = Bench(), logits_of(8)
    for row in range(3):
        bench.admit(row, SamplingParams(temperature=0 if row < 2 else 1.0))
    bits = np.zeros((2, 2), np.uint32)
    bits[0, 1] = 1 << 5  # token 37
    bits[1, 0] = 1 << 31  # token 31
    tokens = bench.tokens({row: logits for row in range(3)}, Masks((0, 2), torch.from_numpy(bits.view(np.int32))))
    assert tokens == [37, int(logits.argmax()), 31]


def test_steps_that_sample_nothing_and_slices_that_do_not_sample():
    bench = Bench()
    bench.admit(0, SamplingParams(temperature=0))
    bench.admit(1, SamplingParams())
    plan = Plan(3, (Slice(0, 0, 2, 0, False), Slice(1, 0, 1, 0, True)))
    sampled = bench.sampler(torch.zeros(1, VOCAB), bench.batch([1]), bench.rows, bench.sampler.recipe(plan, bench.rows.held))
    output = sampled.fetch(plan).result()
    assert output.step == 3
    assert [len(tokens) for tokens in output.tokens] == [0, 1]
    plan = Plan(4, (Slice(0, 0, 2, 0, False),))
    sampled = bench.sampler(torch.zeros(0, VOCAB), bench.batch([]), bench.rows, bench.sampler.recipe(plan, bench.rows.held))
    assert sampled.fetch(plan).result().tokens == [[]]


class Only:
    """A stage of a user's: rows with a seed sample the seed's token."""

    def __init__(self, vocab_size):
        from octavo.sampling.stage import Column

        self.columns = (Column("only", dtype=torch.int64),)

    def wants(self, params):
        return params.seed is not None

    def fill(self, admission):
        return {"only": admission.params.seed}

    def apply(self, logits, view):
        return torch.full_like(logits, -torch.inf).scatter_(1, view.column("only")[:, None], 0.0)

    def update(self, view, tokens):
        view.source.columns["only"].index_put_((view.rows,), tokens + 1)


def test_own_stage_by_dotted_name():
    bench = Bench(own=[load_stage(f"{__name__}:Only", VOCAB)])
    bench.admit(0, SamplingParams(seed=9, temperature=0))
    bench.admit(1, SamplingParams(temperature=0))
    logits = logits_of(3)
    assert bench.tokens({0: logits, 1: logits}) == [9, int(logits.argmax())]
    assert bench.tokens({1: logits, 0: logits}) == [int(logits.argmax()), 10]


@pytest.mark.parametrize("name", ["nowhere:Stage", "octavo.sampling.stage:Nothing", "NoModule", "octavo.sampling.draw:Truncation"])
def test_own_stage_that_is_none_is_refused_with_its_name(name):
    with pytest.raises(ValueError, match=name):
        load_stage(name, VOCAB)


@settings(deadline=None)
@given(any_params)
def test_the_scheduler_counts_every_row_that_takes_a_slot(params):
    bench = Bench()
    bench.admit(0, params)
    assert needs_vocabulary_slot(params) or bench.rows.held[0].slot == 0


def test_a_packed_outcome_is_the_same_outcome():
    """What a graph packs with padding comes out as the plain copy does."""
    from octavo.sampling.sampled import Fetching, Sampled

    tokens, peaks = torch.tensor([[7], [2**40], [5], [0]]), torch.tensor([1.5, float("nan"), -2.0, 9.0])
    plan = Plan(3, tuple(Slice(row, 1, 1, 0, True) for row in range(3)))
    sampled = Sampled(torch.arange(4), tokens, peaks).pack().first(3)

    class Arrived:
        def synchronize(self):
            pass

    packed = Fetching(plan, (), (), False, [sampled.tokens, sampled.peaks], sampled.packed.view(-1), Arrived())
    plain = Sampled(torch.arange(3), tokens[:3], peaks[:3]).fetch(plan)
    assert packed.result() == plain.result()
    assert packed.result().tokens == [[7], [], [5]]
