"""The law of the text core: for every split of the tokens over steps, the deltas join to the answer given at once."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.output import RequestState
from octavo.types import FinishReason, OutputKind, Request, RequestOutput, SamplingParams, SequenceOutput
from tests.scripted_engine import BOS, END_OF_TURN, EOS, VOCAB_SIZE, PieceTokenizer, Script, ScriptedEngine


def run(
    pieces: Sequence[str | bytes | int], *, per_step: int = 1, kind: OutputKind = OutputKind.FINAL_ONLY, interval: int = 1, **params: Any
) -> tuple[list[RequestOutput], ScriptedEngine, RequestState]:
    tokenizer = PieceTokenizer()
    engine = ScriptedEngine(tokenizer, Script(pieces, per_step=per_step))
    settings_ = SamplingParams(output_kind=kind, eos_token_ids=(EOS,), **({"max_tokens": 100} | params))
    request = Request("r", tuple(b"prompt"), settings_)
    state = RequestState(request, "prompt", tokenizer, clock=lambda: 1.0, stream_interval=interval)
    outputs: list[RequestOutput] = []

    async def drive() -> None:
        async for news in engine.stream(request):
            output, stopped = state.feed(news)
            for index, num_tokens in stopped:
                engine.finish("r", index, FinishReason.STOP, num_tokens)
            if output:
                outputs.append(output)
            if state.finished:
                break

    asyncio.run(drive())
    return outputs, engine, state


def joined(outputs: list[RequestOutput], index: int = 0) -> tuple[Any, ...]:
    parts = [one for output in outputs for one in output.outputs if one.index == index]
    return (
        "".join(part.text for part in parts),
        [token for part in parts for token in part.token_ids],
        [position for part in parts for position in part.logprobs or ()],
        [offset for part in parts for offset in part.text_offsets or ()],
        parts[-1].cumulative_logprob,
        parts[-1].finish_reason,
        parts[-1].stop_reason,
    )


PIECES = st.lists(
    st.one_of(st.text(alphabet="abé🙂", min_size=1, max_size=3), st.binary(min_size=1, max_size=2), st.just(END_OF_TURN)), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(
    pieces=PIECES,
    per_step=st.integers(1, 9),
    stop=st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=3), max_size=3),
    n=st.integers(1, 3),
    include=st.booleans(),
    skip=st.booleans(),
    max_tokens=st.integers(1, 9),
    min_tokens=st.integers(0, 4),
    logprobs=st.sampled_from([None, 0, 2]),
    stop_ids=st.sampled_from([(), (END_OF_TURN,)]),
    interval=st.integers(1, 4),
)
def test_deltas_join_to_the_whole(
    pieces, per_step, stop, n, include, skip, max_tokens, min_tokens, logprobs, stop_ids, interval
) -> None:
    params = dict(
        n=n, stop=stop, include_stop_str_in_output=include, skip_special_tokens=skip, max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens), logprobs=logprobs, stop_token_ids=stop_ids,
    )  # fmt: skip
    whole, _, _ = run(pieces, per_step=1, **params)
    assert len(whole) == 1
    cumulative, _, _ = run(pieces, per_step=per_step, kind=OutputKind.CUMULATIVE, interval=interval, **params)
    deltas, engine, state = run(pieces, per_step=per_step, kind=OutputKind.DELTA, interval=interval, **params)
    for index in range(n):
        expected = joined(whole, index)
        assert joined(deltas, index) == expected
        assert joined(cumulative[-1:], index) == expected
        text = [next(one.text for one in output.outputs if one.index == index) for output in cumulative]
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(text)), "text once given never changes"
    assert state.num_output_tokens == sum(len(joined(whole, index)[1]) for index in range(n))
    for _, index, _, num_tokens in engine.finished:
        assert num_tokens == len(joined(whole, index)[1]), "the engine is told how many tokens count"


@pytest.mark.parametrize("per_step", [1, 2, 5])
@pytest.mark.parametrize("kind", list(OutputKind))
def test_a_long_stop_string_over_token_borders_never_shows(per_step: int, kind: OutputKind) -> None:
    outputs, engine, _ = run(["Ob", "serv", "ation", ":", " x"], per_step=per_step, kind=kind, stop=["Observation:"])
    text = "".join(one.outputs[0].text for one in outputs)
    assert text == ""
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert outputs[-1].outputs[0].stop_reason == "Observation:"
    assert engine.finished == [("r", 0, FinishReason.STOP, 4)]


def test_a_stop_by_a_special_id_removes_nothing_else() -> None:
    outputs, _, _ = run(["good", " bye", END_OF_TURN], stop_token_ids=[END_OF_TURN])
    one = outputs[0].outputs[0]
    assert (one.text, one.finish_reason, one.stop_reason) == ("good bye", "stop", END_OF_TURN)


def test_the_text_of_an_ending_id_belongs_to_the_text_only_when_asked() -> None:
    bye = ord("!")
    assert run(["good", bye], stop_token_ids=[bye])[0][0].outputs[0].text == "good"
    assert run(["good", bye], stop_token_ids=[bye], include_stop_str_in_output=True)[0][0].outputs[0].text == "good!"


def test_what_was_held_back_comes_when_the_text_ends_by_length() -> None:
    outputs, _, _ = run(["abc", "de", "zz"], kind=OutputKind.DELTA, stop=["bcdef"], max_tokens=2)
    assert [one.outputs[0].text for one in outputs] == ["a", "bcde"]
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_a_stream_may_tell_several_tokens_at_once_but_for_the_first_and_what_is_left_at_the_end() -> None:
    outputs, _, _ = run(["a", "b", "c", "d", "e", "f", "g"], kind=OutputKind.DELTA, interval=3, max_tokens=7)
    assert [one.outputs[0].text for one in outputs] == ["a", "bcd", "efg"]
    outputs, _, _ = run(["a", "b", "c", "d", "stop"], kind=OutputKind.DELTA, interval=3, stop=["stop"])
    assert [one.outputs[0].text for one in outputs] == ["a", "bcd", ""]
    assert outputs[-1].outputs[0].finish_reason == "stop"


def test_a_stream_goes_on_over_an_id_that_no_token_has() -> None:
    tokenizer = PieceTokenizer()
    request = Request("r", tuple(b"prompt"), SamplingParams(max_tokens=9, output_kind=OutputKind.DELTA))
    state = RequestState(request, "prompt", tokenizer, clock=lambda: 1.0)
    state.feed([SequenceOutput("r", 0, (ord("a"),))])
    growing = state.growing(0)
    texts = [growing.short_text(token_id) for token_id in (ord("b"), VOCAB_SIZE, *"é".encode(), BOS)]
    assert texts == ["b", "", "", "é", ""]
    assert growing.num_tokens == 6


def test_min_tokens_hold_for_stop_strings() -> None:
    outputs, _, _ = run(["stop", "a", "stop", "b"], stop=["stop"], min_tokens=2)
    assert outputs[0].outputs[0].text == "stopa"


def test_late_news_of_an_ended_continuation_are_ignored() -> None:
    tokenizer = PieceTokenizer()
    request = Request("r", (1,), SamplingParams(stop=["b"], n=2))
    state = RequestState(request, None, tokenizer)
    _, stopped = state.feed([SequenceOutput("r", 0, (ord("b"),)), SequenceOutput("r", 1, (ord("a"),))])
    assert stopped == [(0, 1)]
    late, again = state.feed([SequenceOutput("r", 0, (ord("b"),))])
    assert late is None
    assert again == []
    assert not state.finished
    state.feed([SequenceOutput("r", 1, (ord("b"),))])
    assert state.finished


def test_prompt_logprobs_start_with_none_and_come_once() -> None:
    outputs, _, _ = run(["a", "b"], kind=OutputKind.DELTA, prompt_logprobs=1)
    given_ = [one.prompt_logprobs for one in outputs if one.prompt_logprobs]
    assert len(given_) == 1
    assert len(given_[0]) == len("prompt")
    assert given_[0][0] is None
    assert [next(iter(position)) for position in given_[0][1:]] == list(b"rompt"), "the real token is always there, first"


def test_without_detokenizing_there_are_ids_and_no_text() -> None:
    outputs, _, _ = run(["a", "b"], detokenize=False)
    assert outputs[0].outputs[0].text == ""
    assert len(outputs[0].outputs[0].token_ids) == 3


def test_an_error_is_told_with_its_reason() -> None:
    tokenizer = PieceTokenizer()
    state = RequestState(Request("r", (1,), SamplingParams()), None, tokenizer)
    output, _ = state.feed([SequenceOutput("r", 0, (), finish_reason=FinishReason.ERROR, stop_reason="logits are not finite")])
    assert output is not None
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].stop_reason == "logits are not finite"


def test_times_and_cache_facts() -> None:
    outputs, _, state = run(["a"], max_tokens=1)
    assert state.metrics.first_token_time == state.metrics.finished_time == 1.0
    assert state.metrics.time_in_queue == 0.001
    assert outputs[0].num_cached_tokens == 0
