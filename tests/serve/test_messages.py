"""/v1/messages: Anthropic's form of chats; what is refused, and a stream that comes to the answer given at once."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripted_engine import EOS, PieceTokenizer, Script
from tests.serve.serving import Client, client
from tests.serve.test_responses import ANSWER, READING, TEMPLATE

MESSAGES = "/v1/messages"
TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("now", "add")]
HELLO = [{"role": "user", "content": "Hi"}]


def joined(text: str) -> dict[str, Any]:
    """The answer that the events of a stream come to."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    answer: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "message_start":
                answer = event["message"]
                assert answer["content"] == []
            case "content_block_start":
                assert event["index"] == len(answer["content"])
                answer["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = answer["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "input_json_delta":
                        arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
            case "content_block_stop":
                block = answer["content"][event["index"]]
                if block["type"] == "tool_use":
                    try:
                        block["input"] = json.loads(arguments.get(event["index"], "{}"))
                    except ValueError:
                        block["input"] = {}
            case "message_delta":
                answer |= event["delta"] | {"usage": event["usage"]}
            case other:
                assert other == "message_stop"
    assert blocks[-1].startswith("event: message_stop")
    return answer


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in block.items() if name != "id"} for block in answer["content"]]
    return {name: value for name, value in answer.items() if name != "id"} | {"content": content}


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(ANSWER)), max_size=8),
    text=st.sampled_from([ANSWER, "Hello", "<think>Long", ""]),
    max_tokens=st.integers(1, 12),
    stop=st.sampled_from([None, ["ell"], ["Su"]]),
)
def test_a_stream_comes_to_the_answer_given_at_once(cuts: list[int], text: str, max_tokens: int, stop: list[str] | None) -> None:
    ends = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end]]

    async def compare() -> None:
        async with client(Script(pieces or [EOS]), **READING) as api:
            body = {"messages": HELLO, "tools": TOOLS, "max_tokens": max_tokens, "stop_sequences": stop}
            whole = (await api.post(MESSAGES, body)).json()
            streamed = await api.post(MESSAGES, {**body, "stream": True})
            assert without_ids(joined(streamed.text)) == without_ids(whole)
            assert not api.engine.active
            assert not api.front.running

    asyncio.run(compare())


async def test_why_an_answer_ended() -> None:
    async with client(Script(["Hello", " you"])) as api:

        async def ask(**body: Any) -> dict[str, Any]:
            return (await api.post(MESSAGES, {"messages": HELLO, "max_tokens": 9, **body})).json()

        answer = await ask()
        assert answer["content"] == [{"type": "text", "text": "Hello you"}]
        assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
        answer = await ask(max_tokens=1)
        assert (answer["stop_reason"], answer["content"][0]["text"]) == ("max_tokens", "Hello")
        answer = await ask(stop_sequences=["lo"])
        assert (answer["stop_reason"], answer["stop_sequence"], answer["content"][0]["text"]) == ("stop_sequence", "lo", "Hel")


async def test_calls_of_tools_and_cached_tokens() -> None:
    async with client(Script([ANSWER], num_cached_tokens=3), **READING) as api:
        answer = (await api.post(MESSAGES, {"messages": HELLO, "max_tokens": 9, "tools": TOOLS})).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        assert [block["input"] for block in answer["content"][2:]] == [{}, {"a": 1}]
        assert answer["stop_reason"] == "tool_use"
        usage = answer["usage"]
        assert usage["cache_read_input_tokens"] == 3
        assert usage["input_tokens"] + 3 == len(api.engine.requests[-1].prompt_token_ids)


async def prompt_of(api: Client, messages: list[Any], **body: Any) -> str:
    response = await api.post(MESSAGES, {"messages": messages, "max_tokens": 9, **body})
    assert response.status_code == 200, response.text
    return PieceTokenizer().decode(api.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


async def test_blocks_become_messages() -> None:
    async with client(template=TEMPLATE, **READING) as api:
        system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]
        assert await prompt_of(api, HELLO, system=system) == "<system>|Be\nbrief<user>|Hi"
        conversation = [
            {"role": "user", "content": [{"type": "text", "text": "Now?", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "c1", "name": "now", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "So?"},
            ]},
        ]  # fmt: skip
        assert await prompt_of(api, conversation, tools=TOOLS) == (
            "<user>|Now?<assistant>hm|Look.[c1 now {\"a\": 1}]<tool>|noonc1<user>|So?"
        )
    async with client() as api:
        given = [*HELLO, {"role": "assistant", "content": "It is"}]
        assert await prompt_of(api, given) == "<user>Hi\n<assistant>It is", "an answer that has begun goes on"
        count = (await api.post(f"{MESSAGES}/count_tokens", {"messages": given})).json()
        assert count == {"input_tokens": len(api.engine.requests[-1].prompt_token_ids)}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, "messages[0].content"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"), ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"temperature": 1e400}, None), ({"system": 5}, "system"),
    ],
)  # fmt: skip
async def test_what_is_refused_reads_as_either_api(wrong: dict[str, Any], param: str | None) -> None:
    async with client() as api:
        for stream in (False, True):
            response = await api.post(MESSAGES, {"messages": HELLO, "max_tokens": 5, "stream": stream, **wrong}) if param else (
                await api.http.post(MESSAGES, content=b'{"messages": [], "max_tokens": 5, "temperature": 1e400}')
            )  # fmt: skip
            assert response.status_code == 400, response.text
            answer = response.json()
            assert answer["type"] == "error"
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert answer["error"]["type"] == "invalid_request_error"
            assert (answer["error"]["param"] or "").startswith(param or "")
        await api.alive()


async def test_what_fails_later_is_told_in_the_stream() -> None:
    async with client(Script(fail_after=2)) as api:
        response = await api.post(MESSAGES, {"messages": HELLO, "max_tokens": 9})
        assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
        last = (await api.post(MESSAGES, {"messages": HELLO, "max_tokens": 9, "stream": True})).text.split("\n\n")[-2]
        assert last.startswith("event: error\n")
        assert "not finite" in last


async def test_a_key_may_come_in_anthropics_header() -> None:
    async with client(api_key=("one",)) as api:
        body = {"messages": HELLO, "max_tokens": 5}
        assert (await api.post(MESSAGES, body, headers={"x-api-key": "one"})).status_code == 200
        assert (await api.post(MESSAGES, body, headers={"x-api-key": "two"})).status_code == 401
