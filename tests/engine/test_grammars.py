"""Constraints through the whole engine with the bundled model: the loop at both depths, chunks, preemption, neighbours, and what fails."""

import json
import re
import time
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.grammars import Grammars
from octavo.grammar.library import GrammarError, Matcher
from octavo.types import InvalidRequest, StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "A person as JSON: "


def params(constraint: StructuredOutputs | None, **more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 40, "structured_outputs": constraint} | more)


ASKED = [
    params(StructuredOutputs(json=SCHEMA)),
    params(StructuredOutputs(json=SCHEMA), temperature=1.0, seed=3, n=3),
    params(None, max_tokens=12),
    params(StructuredOutputs(regex="[0-9]{3}-[0-9]{4}"), ignore_eos=True),
    params(StructuredOutputs(choice=["yes", 'no, "never"']), min_tokens=20),
    params(StructuredOutputs(regex="a{5}b"), stop=["aaa"]),
    params(StructuredOutputs(json=SCHEMA), max_tokens=3),
    *[params(StructuredOutputs(regex="[0-9]{40}"), max_tokens=45)] * 3,  # a token a digit: long enough to be preempted
]


def texts(llm: LLM, asked: list[SamplingParams]) -> list[tuple[str, str | None]]:
    outputs = llm.generate([PROMPT] * len(asked), asked, use_tqdm=False)
    return [(one.text, one.finish_reason) for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def llm():
    # In float32: forced texts leave what the model likes, and there 8-bit products round near ties to either side.
    made = LLM("smollm2-135m", dtype="float32", max_model_len=128, max_num_seqs=16, kv_cache_memory_bytes="64M")
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[tuple[str, str | None]]:
    """Each request alone."""
    return [one for asked in ASKED for one in texts(llm, [asked])]


def test_texts_keep_their_constraints(expected: list[tuple[str, str | None]]) -> None:
    for text, reason in expected[:4]:
        person = json.loads(text)
        assert sorted(person) == ["age", "name"]
        assert isinstance(person["age"], int)
        assert len(person["name"]) <= 8
        assert reason == "stop"
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", expected[5][0])
    assert expected[6] in [("yes", "stop"), ('no, "never"', "stop")], "min_tokens cannot go beyond the constraint"
    assert expected[7] == ("", "stop")
    assert expected[8][1] == "length"


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"async_scheduling": False},
        {"max_num_batched_tokens": 16},
        {"max_model_len": 56, "kv_cache_memory_bytes": "6M", "block_size": 8, "enable_prefix_caching": False},
        {"distributed_executor_backend": "mp"},
    ],
)
def test_a_batch_of_them_says_what_each_says_alone(flags: dict[str, Any], expected: list[tuple[str, str | None]]) -> None:
    made = LLM("smollm2-135m", dtype="float32", **{"max_model_len": 128, "max_num_seqs": 16, "kv_cache_memory_bytes": "64M"} | flags)
    try:
        assert texts(made, ASKED * 2) == expected * 2
        if "enable_prefix_caching" in flags:
            assert made.get_metrics()["num_preemptions"], "or the case is not tested"
        assert not made._engine.grammars.active
        assert made.get_metrics()["kv_cache_usage"] == 0
    finally:
        made.close()


def test_an_impossible_constraint_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="minimum"):
        texts(llm, [params(None), params(StructuredOutputs(json={"type": "integer", "minimum": 5, "maximum": 3}))])


@pytest.mark.parametrize("what", ["mask", "consume", "vocabulary"])
def test_a_failing_matcher_ends_its_own_text_only(llm: LLM, expected: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def broken(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if what != "mask" or calls > 3:
            raise GrammarError("the matcher is broken")
        return real(*args)

    real = Matcher.mask
    if what == "vocabulary":
        monkeypatch.setattr(Grammars, "_compile", broken)
    else:
        monkeypatch.setattr(Matcher, what, broken)
    outputs = llm.generate([PROMPT] * 2, [ASKED[0], ASKED[2]], use_tqdm=False)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "the matcher is broken" in str(outputs[0].outputs[0].stop_reason)
    assert (outputs[1].outputs[0].text, outputs[1].outputs[0].finish_reason) == expected[4]
    assert not llm._engine.grammars.active


def test_compiling_that_takes_too_long_ends_its_request_only(llm: LLM, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.grammars.COMPILE_LIMIT_S", 0.3)
    monkeypatch.setattr(Grammars, "_compile", lambda self, constraint: time.sleep(1.0))
    outputs = llm.generate([PROMPT] * 2, [ASKED[0], ASKED[2]], use_tqdm=False)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "longer than" in str(outputs[0].outputs[0].stop_reason)
    assert outputs[1].outputs[0].text == expected[4][0]
