"""`LLM` by the names that vLLM's callers use, over one layer of random weights."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams, TextPrompt, TokensPrompt
from octavo.config.fields import ConfigError
from octavo.llm import FOREIGN_ARGUMENTS
from octavo.types import InvalidRequest

SMALL = {
    "load_format": "dummy", "hf_overrides": {"num_hidden_layers": 1}, "max_model_len": 128, "kv_cache_memory_bytes": 1 << 23,
}  # fmt: skip
EIGHT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM("smollm2-135m", **SMALL)
    yield made
    made.close()


def test_a_prompt_in_every_form(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello")
    outputs = llm.generate(["Hello", ids, TextPrompt(prompt="Hello"), TokensPrompt(prompt_token_ids=ids), {"prompt": "Hello"}], EIGHT)
    assert [output.prompt_token_ids for output in outputs] == [ids] * 5
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["Hello", None, "Hello", None, "Hello"]
    assert [len(llm.generate(one, EIGHT, use_tqdm=False)) for one in ("Hello", ids, {"prompt": "Hello"}, [])] == [1, 1, 1, 0]


def test_garbage_is_seldom_looked_for_while_steps_are_made(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = llm.inside
    before, within, step = gc.get_threshold(), set[int](), loop.step
    monkeypatch.setattr(loop, "step", lambda: (within.add(gc.get_threshold()[0]), step()))
    llm.generate("Hello", EIGHT, use_tqdm=False)
    assert within == {100_000}
    assert gc.get_threshold() == before


def test_what_an_output_tells(llm: LLM) -> None:
    (output,) = llm.generate("Hello", SamplingParams(max_tokens=3, seed=1, logprobs=2, prompt_logprobs=1, ignore_eos=True), use_tqdm=False)
    (one,) = output.outputs
    assert (output.finished, one.finish_reason, one.stop_reason, one.index, len(one.token_ids)) == (True, "length", None, 0, 3)
    assert one.text == llm.get_tokenizer().decode(one.token_ids)
    assert one.cumulative_logprob == pytest.approx(
        sum(position[token].logprob for position, token in zip(one.logprobs or [], one.token_ids, strict=True))
    )
    assert output.prompt_logprobs is not None
    assert [position is None for position in output.prompt_logprobs] == [True] + [False] * (len(output.prompt_token_ids) - 1)
    assert output.metrics is not None
    assert output.metrics.first_token_latency is not None
    assert 0 < output.metrics.first_token_latency <= output.metrics.finished_time - output.metrics.arrival_time  # pyright: ignore


def test_a_chat_that_is_streamed_says_the_same(llm: LLM) -> None:
    pieces = list(llm.chat_stream(HELLO, EIGHT))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.chat(HELLO, EIGHT, use_tqdm=False)[0].outputs[0].text


def test_one_reads_at_a_time_and_who_leaves_early_ends_it(llm: LLM) -> None:
    stream = llm.chat_stream(HELLO, SamplingParams(max_tokens=60, ignore_eos=True))
    next(stream)
    with pytest.raises(RuntimeError, match="still being read"):
        llm.generate("Hello", EIGHT, use_tqdm=False)
    stream.close()
    assert len(llm.generate("Hello", EIGHT, use_tqdm=False)[0].outputs[0].token_ids) == 8
    assert llm.get_metrics()["num_requests_running"] == 0


@pytest.mark.parametrize("name", FOREIGN_ARGUMENTS)
def test_foreign_arguments_of_calls_say_what_to_do_instead(name: str, llm: LLM) -> None:
    for call, prompt in ((llm.generate, "Hello"), (llm.chat, HELLO)):
        with pytest.raises(InvalidRequest) as caught:
            call(prompt, EIGHT, **{name: {"a": 1}})  # pyright: ignore[reportArgumentType]
        assert caught.value.field == name
        assert FOREIGN_ARGUMENTS[name] in str(caught.value)
        assert call(prompt, EIGHT, use_tqdm=False, **{name: None})  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match="no_such"):
            call(prompt, EIGHT, no_such=1)  # pyright: ignore[reportArgumentType]


def test_sampling_params_may_be_changed_and_are_checked_as_new_ones(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens, params.ignore_eos, params.stop = 3, True, "never"  # pyright: ignore[reportAttributeAccessIssue]
    assert params == SamplingParams(max_tokens=3, ignore_eos=True, stop=["never"])
    assert len(llm.generate("Hello", params, use_tqdm=False)[0].outputs[0].token_ids) == 3
    with pytest.raises(InvalidRequest, match="top_p"):
        params.top_p = 7.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="max_token"):
        params.max_token = 7  # pyright: ignore[reportAttributeAccessIssue]
    assert params == SamplingParams(max_tokens=3, ignore_eos=True, stop=["never"])


def test_a_priority_for_all_or_for_each(llm: LLM) -> None:
    for priority in (3, [1, 2], None):
        assert len(llm.generate(["a", "b"], EIGHT, use_tqdm=False, priority=priority)) == 2
    with pytest.raises(InvalidRequest, match="priority"):
        llm.generate(["a", "b"], EIGHT, priority=[1])


BAD_PROMPTS: list[Any] = [[-1], [1.5], [True], [10**9], "", {}, {"prompt": None}, {"text": "a"}, [[]], [5] * 128]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
def test_a_prompt_that_is_none_is_refused_before_anything_runs(prompt: Any, llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate(["Hello", prompt], EIGHT)
    assert llm.get_metrics()["num_requests_running"] == 0


def test_a_template_is_a_file_or_itself(tmp_path: Path) -> None:
    path = tmp_path / "shout.jinja"
    path.write_text("{% for message in messages %}{{ message.content | upper }}{% endfor %}")
    llm = LLM("smollm2-135m", **SMALL, chat_template=path)
    decode = llm.get_tokenizer().decode
    assert decode(llm.chat(HELLO, EIGHT, use_tqdm=False)[0].prompt_token_ids) == "HELLO"
    assert decode(llm.chat(HELLO, EIGHT, use_tqdm=False, chat_template="{{ 'x' }}")[0].prompt_token_ids) == "x"
    llm.close()
    with pytest.raises(ConfigError, match="no such file"):
        LLM("no/such/model", chat_template="no/such/file")


def test_without_a_tokeniser_there_are_token_ids_only() -> None:
    llm = LLM("smollm2-135m", **SMALL, skip_tokenizer_init=True)
    (output,) = llm.generate([[5, 6]], EIGHT, use_tqdm=False)
    assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 8)
    for field, params in (("stop", SamplingParams(stop="x")), ("bad_words", SamplingParams(bad_words=["x"]))):
        with pytest.raises(InvalidRequest, match=field):
            llm.generate([[5]], params)
    with pytest.raises(InvalidRequest, match="prompt"):
        llm.generate("Hello", EIGHT)
    with pytest.raises(InvalidRequest, match="chat_template"):
        llm.chat(HELLO)
    llm.close()
