"""/v1/responses: what becomes of input items, what is refused, and a stream that comes to the answer given at once."""

import asyncio
import itertools
import json
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.serve.prompts import chat_text
from octavo.serve.responses_input import ResponsesBody, as_chat
from tests.scripted_engine import EOS, Script
from tests.serve.serving import client, make_front, served

RESPONSES = "/v1/responses"
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}} for name in ("now", "add")]
READING = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
CALLS = '<tool_call>{"name":"now","arguments":{}}</tool_call><tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
ANSWER = f"<think>So.</think>Sure. {CALLS}"


def parse(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each named by its type and numbered from 0."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    output = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in answer["output"]]
    return {name: value for name, value in answer.items() if name not in ("id", "created_at")} | {"output": output}


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items that the deltas alone come to."""
    items: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append({**event["item"], "text": ""})
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[event["output_index"]]["id"]
            items[-1]["text"] += event["delta"]
        elif kind == "response.output_item.done":
            done.append(event["item"])
    assert len(done) == len(items)
    for item, end in zip(items, done):
        assert item["text"] == (end["arguments"] if end["type"] == "function_call" else end["content"][0]["text"])
    return done


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, len(ANSWER)), max_size=8),
    text=st.sampled_from([ANSWER, "Hello", "<think>Long", ""]),
    max_tokens=st.one_of(st.none(), st.integers(1, 9)),
    per_step=st.integers(1, 3),
)
def test_a_stream_comes_to_the_answer_given_at_once(cuts: list[int], text: str, max_tokens: int | None, per_step: int) -> None:
    ends = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end]]

    async def compare() -> None:
        async with client(Script(pieces or [EOS], per_step=per_step), **READING) as api:
            body = {"input": "Hi", "tools": TOOLS, **({} if max_tokens is None else {"max_output_tokens": max_tokens})}
            whole = (await api.post(RESPONSES, body)).json()
            events = parse((await api.post(RESPONSES, {**body, "stream": True})).text)
            assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
            final = events[-1]["response"]
            assert events[-1]["type"] == f"response.{final['status']}"
            assert without_ids(final) == without_ids(whole)
            assert joined(events) == final["output"]
            cut = max_tokens is not None and max_tokens <= len(pieces)
            assert whole["status"] == ("incomplete" if cut else "completed")
            assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
            assert not api.engine.active
            assert not api.front.running

    asyncio.run(compare())


def prompt_of(**body: Any) -> str:
    return asyncio.run(chat_text(make_front(template=TEMPLATE), as_chat(msgspec.convert(body, ResponsesBody))))[0]


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}|{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{{ m.tool_call_id or '' }}{% endfor %}"
)


def test_items_become_messages() -> None:
    assert prompt_of(input="Hi", instructions="Be brief") == "<system>|Be brief<user>|Hi"
    items = [
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "What"}, {"type": "input_text", "text": "now?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": '{"a":1}', "id": "fc_2", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noon."}], "id": "msg_1"},
        {"role": "user", "content": "Thanks"},
    ]
    assert prompt_of(input=items, tools=TOOLS) == (
        "<system>|Be brief<user>|What\nnow?<assistant>hm|[c1 now {}][c2 add {\"a\": 1}]<tool>|noonc1"
        + "<tool>|2c2<assistant>|Noon.<user>|Thanks"
    )


async def test_what_an_answer_repeats_of_the_question() -> None:
    async with client() as api:
        body = {
            "input": "Hi", "instructions": "Be", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9, "user": "u", "store": True,
            "max_output_tokens": 50, "include": ["reasoning.encrypted_content"], "truncation": "auto",
        }  # fmt: skip
        answer = (await api.post(RESPONSES, body)).json()
        for name in ("instructions", "metadata", "temperature", "top_p", "user", "max_output_tokens", "truncation"):
            assert answer[name] == body[name]
        assert answer["store"] is False, "nothing is stored, and it says so"
        assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
        assert answer["id"].startswith("resp_")
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        params = api.engine.requests[-1].params
        assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 50)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": None}, "input"), ({"input": 5}, "input"), ({"input": []}, "messages"), ({"input": [5]}, "input"),
        ({"input": [{"role": "wizard", "content": "a"}]}, "input[0].role"), ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"), ({"top_logprobs": 3}, "top_logprobs"), ({"truncation": "some"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"stream": "yes"}, "stream"), ({"metadata": [1]}, "metadata"),
    ],
)  # fmt: skip
async def test_what_is_refused_streamed_or_not(wrong: dict[str, Any], param: str) -> None:
    async with client() as api:
        for stream in (False, True):
            response = await api.post(RESPONSES, {"input": "Hi", "stream": stream, **wrong})
            assert response.status_code == 400, response.text
            assert (response.json()["error"]["param"] or "").startswith(param), response.text
            assert len(response.content) < 8192
        await api.alive()


async def test_an_error_stays_small_whatever_came_in() -> None:
    async with client() as api:
        response = await api.post(RESPONSES, {"input": [{"role": "x" * 500, "content": {"a": "y" * 500}}] * 400})
        assert response.status_code == 400
        assert len(response.content) < 8192


async def test_what_fails_later_is_told_in_the_stream() -> None:
    async with client(Script(fail_after=2)) as api:
        assert (await api.post(RESPONSES, {"input": "Hi"})).status_code == 500
        events = parse((await api.post(RESPONSES, {"input": "Hi", "stream": True})).text)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["status"] == "failed"
        assert "not finite" in events[-1]["response"]["error"]["message"]


def test_the_official_client_reads_answers_and_streams() -> None:
    script = Script([ANSWER[i : i + 5] for i in range(0, len(ANSWER), 5)])
    with served(script, **READING) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as api:
        answer = api.responses.create(model="tiny", input="Hi", tools=TOOLS)  # pyright: ignore
        assert answer.output_text == "Sure."
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
        with api.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:  # pyright: ignore
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        assert text == "Sure."
        assert [item.arguments for item in final.output if item.type == "function_call"] == ["{}", '{"a":1}']
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            api.responses.create(model="tiny", input="Hi", previous_response_id="resp_1")
