"""The constraint on a text, from whichever of OpenAI's and vLLM's fields asks for one."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.serve.errors import ApiError
from octavo.serve.schemas import SamplingBody
from octavo.types import CONSTRAINTS, InvalidRequest, StructuredOutputs

GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


class _Fields(msgspec.Struct):
    """For their types alone."""

    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


def constraint_of(body: SamplingBody) -> StructuredOutputs | None:
    """None where there is none. Raises `ApiError`, `InvalidRequest` and `msgspec.ValidationError`."""
    found: dict[str, StructuredOutputs] = {}
    if body.response_format is not None and (of_format := _of_response_format(body.response_format)) is not None:
        found["response_format"] = of_format
    if body.structured_outputs is not None:
        found["structured_outputs"] = _of_fields(body.structured_outputs)
    for name, kind in GUIDED.items():
        if (value := getattr(body, name)) is not None:
            found[name] = _of_fields({kind: value})
    if len(found) > 1:
        raise ApiError(400, f"Only one constraint on a text is possible; there are {', '.join(found)}.", param=list(found)[1])
    return next(iter(found.values()), None)


def asking_field(body: SamplingBody) -> str:
    """The field that a refused constraint comes from."""
    asked = ("response_format", "structured_outputs", *GUIDED)
    return next((name for name in asked if getattr(body, name) not in (None, {"type": "text"})), "tools")


def _of_response_format(value: Any) -> StructuredOutputs | None:
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return StructuredOutputs(json_object=True)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return StructuredOutputs(json=schema)
        case {"type": "json_schema"}:
            raise InvalidRequest("response_format", value, 'it needs a schema: {"type": "json_schema", "json_schema": {"schema": {...}}}')
        case _:
            raise InvalidRequest("response_format", value, 'its type is one of "text", "json_object", "json_schema"')


def _of_fields(value: Any) -> StructuredOutputs:
    if not isinstance(value, dict):
        raise InvalidRequest("structured_outputs", value, f"an object with one of {', '.join(CONSTRAINTS)} is needed")
    known = (*CONSTRAINTS, "disable_any_whitespace", "whitespace_pattern")
    for name, given in value.items():
        if name not in known and given not in (None, False):
            raise InvalidRequest(f"structured_outputs.{name}", given, f"use one of {', '.join(known)}")
    typed = msgspec.convert(value, _Fields)
    return StructuredOutputs(**{name: given for name in known if (given := getattr(typed, name)) is not None})
