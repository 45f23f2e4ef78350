"""Tool calls and reasoning over HTTP: a stream says the same as an answer given at once, in OpenAI's form."""

import asyncio
import itertools
import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripted_engine import END_OF_TURN, Script
from tests.serve.serving import client, served
from tests.serve.test_stopping_and_streaming import logprobs_of

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    for name in ("now", "add")
]
AUTO = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
CALLS = 'Sure. <tool_call>{"name":"now","arguments":{}}</tool_call>\n<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'


def whole(choice: dict[str, Any]) -> tuple[Any, ...]:
    message = choice["message"]
    calls = [(call["id"], call["type"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    content, reasoning = message["content"] or "", message.get("reasoning_content", "")
    return content, reasoning, calls, choice["finish_reason"], choice["stop_reason"], logprobs_of(choice), choice.get("token_ids", [])


def joined(events: list[dict[str, Any]]) -> tuple[Any, ...]:
    content = reasoning = ""
    calls: list[list[str]] = []
    choices = [event["choices"][0] for event in events if event["choices"]]
    for choice in choices:
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(calls)
                calls.append([call["id"], call["type"], call["function"]["name"], ""])
            calls[call["index"]][3] += call["function"]["arguments"]
    last = choices[-1]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    logprobs = [one for choice in choices for one in logprobs_of(choice)]
    ids = [one for choice in choices for one in choice.get("token_ids", [])]
    return content, reasoning, [tuple(call) for call in calls], last["finish_reason"], last["stop_reason"], logprobs, ids


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 130), max_size=8),
    per_step=st.integers(1, 4),
    logprobs=st.booleans(),
    token_ids=st.booleans(),
    max_tokens=st.integers(1, 12),
    stop=st.sampled_from([None, '"a"', "</tool_call>"]),
    text=st.sampled_from(["<think>so\n</think>\n" + CALLS, CALLS, "No tools.", "<tool_call> is a tag", "<think>only"]),
)
def test_the_deltas_join_to_the_whole(cuts, per_step, logprobs, token_ids, max_tokens, stop, text) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    body = {"messages": HELLO, "tools": TOOLS, "logprobs": logprobs, "return_token_ids": token_ids, "max_tokens": max_tokens, "stop": stop}

    async def compare() -> None:
        async with client(Script(pieces, per_step=per_step), reasoning_parser="qwen3", **AUTO) as api:
            api.front.engine_id = lambda label: "engine-id"  # so that both get the same ids of calls
            answer = (await api.post(CHAT, body)).json()
            api.engine.finished.clear()
            events = await api.events(CHAT, body | {"stream_options": {"include_usage": True}})
            assert joined(events) == whole(answer["choices"][0])
            assert events[-1]["usage"] == answer["usage"]
            assert not api.engine.active

    asyncio.run(compare())


@pytest.mark.parametrize(
    ("pieces", "more", "content", "reason"),
    [
        (["answer ", "<tool", "_cE", "ND", "x"], {"stop": ["END"]}, "answer <tool_c", "stop"),  # while the parser holds text back
        (["hello ", "<tool", "_ca", "ll>"], {"max_tokens": 3}, "hello <tool_ca", "length"),
    ],
)
async def test_a_beginning_that_becomes_no_call_is_content_streamed_or_not(
    pieces: list[str], more: dict[str, Any], content: str, reason: str
) -> None:
    async with client(Script(pieces), **AUTO) as api:
        body = {"messages": HELLO, "tools": TOOLS, **more}
        answer = whole((await api.post(CHAT, body)).json()["choices"][0])
        assert answer[:4] == (content, "", [], reason)
        assert joined(await api.events(CHAT, body)) == answer


async def test_two_calls_have_their_own_ids_and_the_reason_says_so() -> None:
    async with client(Script([CALLS[at : at + 3] for at in range(0, len(CALLS), 3)]), **AUTO) as api:
        answer = (await api.post(CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 60, "n": 2})).json()
        messages = [choice["message"] for choice in answer["choices"]]
        assert [message["content"] for message in messages] == ["Sure."] * 2
        calls = [call for message in messages for call in message["tool_calls"]]
        assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("now", "{}"), ("add", '{"a":1}')] * 2
        assert len({call["id"] for call in calls}) == 4
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"tool_calls"}
        one = (await api.post(CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 60, "parallel_tool_calls": False})).json()
        assert [call["function"]["name"] for call in one["choices"][0]["message"]["tool_calls"]] == ["now"]
        cut = (await api.post(CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 30})).json()["choices"][0]
        assert cut["finish_reason"] == "length"
        none = (await api.post(CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 60, "tool_choice": "none"})).json()["choices"][0]
        assert (none["message"]["content"], none["finish_reason"]) == (CALLS, "stop")
        assert "tool_calls" not in none["message"]


async def test_reasoning_is_told_apart_and_can_be_left_out() -> None:
    async with client(Script(["I th", "ink</thi", "nk>", "\nYes"]), reasoning_parser="deepseek_r1") as api:
        message = (await api.post(CHAT, {"messages": HELLO})).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("I think", "I think", "Yes")
        message = (await api.post(CHAT, {"messages": HELLO, "include_reasoning": False})).json()["choices"][0]["message"]
        assert "reasoning_content" not in message
        events = await api.events(CHAT, {"messages": HELLO, "include_reasoning": False})
        assert joined(events)[:2] == ("Yes", "")


async def test_reasoning_is_streamed_token_by_token_under_both_names() -> None:
    async with client(Script(["I", " th", "ink", " so", "</thi", "nk>", "\nYes", "!"]), reasoning_parser="deepseek_r1") as api:
        events = await api.events(CHAT, {"messages": HELLO})
        assert joined(events)[:2] == ("Yes!", "I think so")
        deltas = [event["choices"][0]["delta"] for event in events]
        assert [delta.get("reasoning") for delta in deltas] == [delta.get("reasoning_content") for delta in deltas]
        assert sum("reasoning" in delta for delta in deltas) == 4


async def test_control_tokens_are_shown_to_the_formats_that_need_them() -> None:
    async with client(Script(["a", END_OF_TURN, "b"]), reasoning_parser="qwen3") as api:
        await api.post(CHAT, {"messages": HELLO})
        assert api.engine.requests[-1].params.skip_special_tokens, "its tags are no control tokens here"
        api.front.model.tokenizer.special_ids |= {api.engine.tokenizer.token("<think>")}  # pyright: ignore
        api.front.model.tokenizer.encode = lambda text, special=True: [api.engine.tokenizer.token(text)]  # pyright: ignore
        await api.post(CHAT, {"messages": HELLO})
        assert not api.engine.requests[-1].params.skip_special_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "code_interpreter", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": TOOLS * 65}, "tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
async def test_what_tools_cannot_be_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    async with client(**AUTO) as api:
        response = await api.post(CHAT, {"messages": HELLO} | body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        await api.alive()


async def test_tools_need_a_server_that_knows_how_the_model_calls() -> None:
    async with client() as api:
        error = (await api.post(CHAT, {"messages": HELLO, "tools": TOOLS})).json()["error"]
        assert "--tool-call-parser" in error["message"]
        assert (await api.post(CHAT, {"messages": HELLO, "tools": [], "tool_choice": "required"})).status_code == 200


TEMPLATE = "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ messages[0].content }}"


@pytest.mark.parametrize(("hide", "prompt"), [(True, "Hi"), (False, "nowHi")])
async def test_whether_the_template_sees_tools_that_must_not_be_called(hide: bool, prompt: str) -> None:
    async with client(template=TEMPLATE, exclude_tools_when_tool_choice_none=hide) as api:
        await api.post(CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"})
        assert bytes(api.engine.requests[-1].prompt_token_ids).decode() == prompt


def test_the_official_client_calls_tools() -> None:
    """With fields that only some clients send: they are let pass."""
    messages: Any = [{"role": "user", "content": "Hi", "name": "user1"}]
    with (
        served(Script([CALLS[at : at + 3] for at in range(0, len(CALLS), 3)]), **AUTO) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as api,
    ):
        answer = api.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, extra_body={"foo": 1})  # pyright: ignore
        calls = answer.choices[0].message.tool_calls or []
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [("now", {}), ("add", {"a": 1})]
        with api.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS) as stream:  # pyright: ignore
            final = stream.get_final_completion()
        assert final.choices[0].finish_reason == "tool_calls"
        assert final.choices[0].message.content == "Sure."
        streamed = final.choices[0].message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in streamed] == [("now", "{}"), ("add", '{"a":1}')]
