"""Stopping, streaming and usage: a stream says the same as an answer given at once."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripted_engine import END_OF_TURN, PieceTokenizer, Script
from tests.serve.serving import client

ROUTES = ("/v1/completions", "/v1/chat/completions")


def asked(route: str, **fields: Any) -> dict[str, Any]:
    own = {"prompt": "Hi"} if route == ROUTES[0] else {"messages": [{"role": "user", "content": "Hi"}]}
    return own | {"max_tokens": 20} | fields


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content") or ""


def logprobs_of(choice: dict[str, Any]) -> list[Any]:
    found = choice["logprobs"]
    if found is None:
        return []
    return (
        found["content"]
        if "content" in found
        else list(zip(*(found[k] for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))))
    )


def joined(events: list[dict[str, Any]], index: int) -> tuple[Any, ...]:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return (
        "".join(map(text_of, choices)),
        [one for choice in choices for one in logprobs_of(choice)],
        [one for choice in choices for one in choice.get("token_ids", [])],
        choices[-1]["finish_reason"],
        choices[-1]["stop_reason"],
    )


def whole(answer: dict[str, Any], index: int) -> tuple[Any, ...]:
    choice = answer["choices"][index]
    assert choice["index"] == index
    return text_of(choice), logprobs_of(choice), choice.get("token_ids", []), choice["finish_reason"], choice["stop_reason"]


@settings(max_examples=60, deadline=None)
@given(
    route=st.sampled_from(ROUTES),
    pieces=st.lists(st.one_of(st.text(alphabet="abé🙂", min_size=1, max_size=3), st.binary(min_size=1, max_size=2)), max_size=8),
    per_step=st.integers(1, 4),
    stop=st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=3), max_size=2),
    n=st.integers(1, 3),
    max_tokens=st.integers(1, 9),
    logprobs=st.booleans(),
    token_ids=st.booleans(),
    running_usage=st.booleans(),
    prompts=st.integers(1, 3),
    echo=st.booleans(),
    interval=st.integers(1, 3),
)
def test_a_stream_joins_to_the_whole_answer(
    route, pieces, per_step, stop, n, max_tokens, logprobs, token_ids, running_usage, prompts, echo, interval
) -> None:
    body = asked(route, stop=stop, n=n, max_tokens=max_tokens, return_token_ids=token_ids)
    if route == ROUTES[0]:
        body |= {"prompt": ["Hi", "Ho", "é"][:prompts], "echo": echo, "logprobs": 2 if logprobs else None}
    else:
        prompts = 1
        body |= {"logprobs": logprobs, "top_logprobs": 2 if logprobs else None}

    async def both() -> None:
        async with client(Script(pieces, per_step=per_step), stream_interval=interval) as api:
            response = await api.post(route, body)
            assert response.status_code == 200, response.text
            answer = response.json()
            options = {"include_usage": True, "continuous_usage_stats": running_usage}
            events = await api.events(route, body | {"stream_options": options})
            last = events.pop()
            assert last["choices"] == []
            assert last["usage"] == answer["usage"]
            assert last["octavo"] == answer["octavo"]
            assert all(("usage" in event) == running_usage for event in events)
            for index in range(n * prompts):
                assert joined(events, index) == whole(answer, index)
            assert {event["id"] for event in [*events, last]} == {last["id"]}

    asyncio.run(both())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("per_step", [1, 2, 3])
async def test_no_character_of_a_stop_string_is_sent(route: str, per_step: int) -> None:
    async with client(Script(["Ob", "serv", "ation", ":", " x"], per_step=per_step)) as api:
        body = asked(route, stop=["Observation:"])
        events = await api.events(route, body)
        assert "".join(text_of(event["choices"][0]) for event in events) == ""
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert events[-1]["choices"][0]["stop_reason"] == "Observation:"
        answer = (await api.post(route, body)).json()
        assert whole(answer, 0)[0] == ""
        assert answer["usage"]["completion_tokens"] == 4
        assert [ended[1:] for ended in api.engine.finished] == [(0, "stop", 4)] * 2, "the engine is told at once"
        await api.alive()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_chunk_is_sent_only_when_it_says_something(route: str) -> None:
    async with client(Script(["a", "b", "cx", "a", "bcd", "e", "z"])) as api:
        events = await api.events(route, asked(route, stop=["abcdef"]))
        told = [event["choices"][0] for event in events if (event["choices"][0].get("delta") or {}).get("role") is None]
        assert [text_of(choice) for choice in told] == ["abcx", "abcdez", ""] or all(text_of(c) or c["finish_reason"] for c in told)
        assert [text_of(choice) for choice in told if not choice["finish_reason"]] == ["abcx", "abcdez"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_stop_by_a_special_id_cuts_nothing_else(route: str) -> None:
    async with client(Script(["good", " bye", END_OF_TURN])) as api:
        answer = (await api.post(route, asked(route, stop_token_ids=[END_OF_TURN]))).json()
        assert whole(answer, 0)[0] == "good bye"
        assert answer["choices"][0]["stop_reason"] == END_OF_TURN


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("options", "shown"), [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)]
)
async def test_usage_only_when_asked_and_once_at_the_end(route: str, options: Any, shown: bool) -> None:
    async with client() as api:
        body = asked(route, **({} if options is None else {"stream_options": options}))
        events = await api.events(route, body)
        assert [event for event in events if "usage" in event] == ([events[-1]] if shown else [])
        if shown:
            usage = events[-1]["usage"]
            assert events[-1]["choices"] == []
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["completion_tokens"] == 6


async def test_one_done_for_any_number_of_prompts() -> None:
    async with client() as api:
        events = await api.events("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2})
        assert {choice["index"] for event in events for choice in event["choices"]} == set(range(6))


async def test_forced_usage() -> None:
    async with client(enable_force_include_usage=True) as api:
        assert "usage" in (await api.events("/v1/completions", {"prompt": "a"}))[-1]


async def test_stream_options_without_a_stream() -> None:
    async with client() as api:
        response = await api.post("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "stream_options"


async def test_a_prompt_ending_inside_a_character_never_comes_back() -> None:
    smile = "🙂".encode()
    for cut in (1, 2, 3):
        prompt = [*b"Hello world ", *smile[:cut]]
        async with client(Script([*smile[cut:], "!"])) as api:
            events = await api.events("/v1/completions", {"prompt": prompt})
            assert events[0]["choices"][0]["text"] == "🙂"
            assert joined(events, 0)[0] == "🙂!"
            answer = (await api.post("/v1/completions", {"prompt": prompt, "echo": True})).json()
            assert answer["choices"][0]["text"] == "Hello world 🙂!"


async def test_the_first_chunk_of_a_chat_has_the_role() -> None:
    async with client() as api:
        events = await api.events("/v1/chat/completions", asked(ROUTES[1], n=2))
        for index in (0, 1):
            first = next(event["choices"][0] for event in events if event["choices"][0]["index"] == index)
            assert first["delta"] == {"role": "assistant", "content": ""}


async def test_a_failure_in_the_middle_is_an_error_event_and_the_end() -> None:
    def script(request, index):
        return Script(["a", "b"], fail_after=1 if request.prompt_token_ids[-1] == ord("!") else None)

    async with client(script) as api:
        body = {"prompt": "fail!"}
        *told, failure = await api.events("/v1/completions", body)
        assert told[0]["choices"][0]["text"] == "a"
        assert failure["error"]["type"] == "server_error"
        assert "not finite" in failure["error"]["message"]
        response = await api.post("/v1/completions", body)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_error"
        await api.alive()


async def test_a_failure_before_the_first_event_has_its_own_status() -> None:
    for prompt in ("a", ["a", "b", "c"]):
        for stream in (True, False):
            async with client(Script(die_after=0)) as api:
                response = await api.post("/v1/completions", {"prompt": prompt, "stream": stream})
                assert response.status_code == 503
                assert "the engine dies" in response.json()["error"]["message"]
                assert not api.front.running


async def test_stop_strings_end_one_choice_and_not_the_others() -> None:
    def script(request, index):
        return Script(["a", "STOP", "b", "c"] if index == 1 else ["a", "b", "c", "d"])

    async with client(script) as api:
        answer = (await api.post("/v1/completions", {"prompt": "x", "n": 3, "stop": "STOP", "seed": 1})).json()
        assert [choice["text"] for choice in answer["choices"]] == ["abcd", "a", "abcd"]
        assert [choice["stop_reason"] for choice in answer["choices"]] == [None, "STOP", None]


async def test_include_stop_str_in_output() -> None:
    async with client(Script(["a", "ST", "OP!", "b"])) as api:
        answer = (await api.post("/v1/completions", {"prompt": "x", "stop": ["STOP"], "include_stop_str_in_output": True})).json()
        assert answer["choices"][0]["text"] == "aSTOP"


async def test_skip_special_tokens() -> None:
    async with client(Script(["a", END_OF_TURN, "b"])) as api:
        shown = (await api.post("/v1/completions", {"prompt": "x", "skip_special_tokens": False, "max_tokens": 3})).json()
        assert shown["choices"][0]["text"] == "a<|end|>b"


def test_pieces_of_the_tokeniser_are_what_the_tests_say() -> None:
    tokenizer = PieceTokenizer()
    assert tokenizer.decode([tokenizer.token("wor"), tokenizer.token(b"\xc3\xa9")]) == "woré"
