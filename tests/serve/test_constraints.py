"""Constraints as clients ask for them: each field reaches the engine, and what cannot be kept is 400 with the reason."""

import json
from typing import Any

import pytest

from octavo.types import StructuredOutputs, Thinking
from tests.scripted_engine import Script
from tests.serve.serving import client
from tests.serve.test_tool_calls import HELLO, TOOLS, joined

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            StructuredOutputs(json=SCHEMA),
        ),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": False}}, StructuredOutputs(regex="a+")),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, StructuredOutputs(SCHEMA, disable_any_whitespace=True)),
        ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA)),
        ({"guided_regex": "a+"}, StructuredOutputs(regex="a+")),
        ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=["a", "b"])),
        ({"guided_grammar": 'start: "a"'}, StructuredOutputs(grammar='start: "a"')),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_each_field_reaches_the_engine(path: str, fields: dict[str, Any], constraint: StructuredOutputs | None) -> None:
    async with client() as api:
        own = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
        response = await api.post(path, own | fields)
        assert response.status_code == 200, response.text
        assert api.engine.requests[-1].params.structured_outputs == constraint


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(?=x)a"}}, "structured_outputs"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, "guided_json"),
        ({"guided_choice": []}, "structured_outputs.choice"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_a_stream_begins(fields: dict[str, Any], param: str) -> None:
    async with client() as api:
        response = await api.post(COMPLETIONS, {"prompt": "a", "stream": True} | fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param
        await api.alive()


async def test_a_named_tool_is_called_by_its_arguments_alone() -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    async with client(Script(['{"a"', ": 1}"])) as api:
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
        answer = (await api.post(CHAT, body)).json()["choices"][0]
        assert api.engine.requests[-1].params.structured_outputs == StructuredOutputs(json=TOOLS[1]["function"]["parameters"])
        assert [call["function"] for call in answer["message"]["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1}'}]
        assert answer["finish_reason"] == "stop", "as OpenAI says where the caller chose the tool"
        assert [call[2:] for call in joined(await api.events(CHAT, body))[2]] == [("add", '{"a": 1}')]
        both = await api.post(CHAT, body | {"response_format": {"type": "json_object"}})
        assert both.status_code == 400


async def test_required_calls_are_a_list_that_the_schema_describes() -> None:
    calls = [{"name": "now", "parameters": {}}, {"name": "add", "parameters": {"a": 1}}]
    text = json.dumps(calls)
    async with client(Script([text[at : at + 4] for at in range(0, len(text), 4)])) as api:
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
        answer = (await api.post(CHAT, body)).json()["choices"][0]
        assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["now", "add"]
        assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")
        events = joined(await api.events(CHAT, body))
        assert [(name, json.loads(arguments)) for _, _, name, arguments in events[2]] == [("now", {}), ("add", {"a": 1})]
        schema: Any = api.engine.requests[-1].params.structured_outputs.json  # pyright: ignore
        assert (schema["minItems"], [one["properties"]["name"]["const"] for one in schema["items"]["anyOf"]]) == (1, ["now", "add"])
        await api.post(CHAT, body | {"parallel_tool_calls": False})
        assert api.engine.requests[-1].params.structured_outputs.json["maxItems"] == 1  # pyright: ignore


async def test_definitions_of_tools_are_found_from_the_root() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": kind}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    async with client() as api:
        same = {"messages": HELLO, "tools": [tool("f", "integer"), tool("g", "integer")], "tool_choice": "required"}
        assert (await api.post(CHAT, same)).status_code == 200
        different = same | {"tools": [tool("f", "integer"), tool("g", "string")]}
        response = await api.post(CHAT, different)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"


async def test_a_constraint_begins_behind_the_reasoning() -> None:
    async with client(reasoning_parser="qwen3") as api:
        await api.post(CHAT, {"messages": HELLO, "guided_regex": "a+"})
        assert api.engine.requests[-1].params.structured_outputs == StructuredOutputs(
            regex="a+", thinking=Thinking("<think>", "</think>", False)
        )
