"""SmolLM2-135M through the whole engine against transformers: the text must not depend on how the work was cut up."""

from __future__ import annotations

import random

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.messages import Add
from octavo.types import Request
from tests.reference import DOUBTFUL, MODEL, NUM_TOKENS, PROMPTS, verified

SAME = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory_bytes": 96 << 20}
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def expected():
    """Texts made the plainest way (reference operations, no overlap, no cache), which transformers confirms."""
    llm = LLM(MODEL, **SAME, optimization_level=0, async_scheduling=False, enable_prefix_caching=False)
    outputs = llm.generate(list(PROMPTS), GREEDY, use_tqdm=False)
    llm.close()
    return verified([output.outputs[0].token_ids for output in outputs])


def test_every_doubtful_place_is_listed(expected):
    assert {number: one.doubtful_from for number, one in enumerate(expected) if one.doubtful_from < NUM_TOKENS} == DOUBTFUL


def check(expected, texts) -> None:
    for number, (one, text) in enumerate(zip(expected, texts, strict=True)):
        sure = one.doubtful_from
        assert tuple(text[:sure]) == one.token_ids[:sure], f"prompt {number} differs before its first doubtful position {sure}"
        assert len(text) == NUM_TOKENS


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"max_num_batched_tokens": 7, "block_size": 8}, id="budget-7-block-8"),
        pytest.param({"max_num_batched_tokens": 64, "block_size": 16, "async_scheduling": True}, id="budget-64-overlap"),
        pytest.param({"max_num_batched_tokens": 2048, "block_size": 32, "enable_prefix_caching": False}, id="budget-2048-block-32"),
        pytest.param({"max_num_seqs": 1, "block_size": 128}, id="alone-block-128"),
    ],
)  # fmt: skip
def test_greedy_text_equals_transformers(expected, flags):
    llm = LLM(MODEL, **{**SAME, **flags})
    outputs = llm.generate([list(one.prompt_ids) for one in expected], GREEDY, use_tqdm=False)
    check(expected, [output.outputs[0].token_ids for output in outputs])
    llm.close()


def test_preemption_does_not_change_the_text(expected):
    blocks = 26  # of 16 tokens: eight sequences of up to 80 tokens want 40
    llm = LLM(MODEL, **{**SAME, "max_model_len": 160, "kv_cache_memory_bytes": blocks * 16 * 46080})
    outputs = llm.generate([list(one.prompt_ids) for one in expected], GREEDY, use_tqdm=False)
    check(expected, [output.outputs[0].token_ids for output in outputs])
    assert llm.get_metrics()["num_preemptions"] > 0
    llm.close()


def test_the_second_run_hits_the_prefix_cache_and_says_the_same(expected):
    llm = LLM(MODEL, **SAME)
    texts = [list(one.prompt_ids + one.token_ids) for one in expected]
    # A penalty counts the cached part of the prompt too.
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, repetition_penalty=1.3)
    first = llm.generate(texts, params, use_tqdm=False)
    second = llm.generate(texts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in first] == [output.outputs[0].token_ids for output in second]
    assert all(output.num_cached_tokens == 0 for output in first)
    for output in second:
        assert output.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 16 * 16
    llm.close()


def test_sixteen_random_arrivals(expected):
    """Requests that come while others run, through the loop itself."""
    llm = LLM(MODEL, **{**SAME, "max_num_batched_tokens": 48, "block_size": 64})
    loop, outbox = llm._engine, llm._outbox
    rng = random.Random(3)
    waiting = [(str(number), expected[number % 8]) for number in range(16)]
    texts: dict[str, list[int]] = {name: [] for name, _ in waiting}
    rng.shuffle(waiting)
    while waiting or loop.busy:
        if waiting and rng.random() < 0.3:
            name, one = waiting.pop()
            loop.handle([Add(Request(name, one.prompt_ids, GREEDY))])
        loop.step()
        for output in outbox.take():
            texts[output.request_id].extend(output.token_ids)
    check([expected[number % 8] for number in range(16)], [texts[str(number)] for number in range(16)])
    llm.close()


def test_prompt_logprobs_are_those_of_the_reference(expected):
    llm = LLM(MODEL, **SAME)
    one = expected[1]
    text = one.prompt_ids + one.token_ids
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2, logprobs=2)
    output = llm.generate([list(text)], params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    reference = one.logits.log_softmax(-1)
    for position in range(1, len(text)):
        entry = output.prompt_logprobs[position]
        for token, found in entry.items():
            assert found.logprob == pytest.approx(float(reference[position - 1, token]), abs=1e-3)
        assert text[position] in entry
    for token, found in output.outputs[0].logprobs[0].items():
        assert found.logprob == pytest.approx(float(reference[-1, token]), abs=1e-3)
    llm.close()
