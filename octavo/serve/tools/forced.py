"""Calls that a grammar has forced: the text is the arguments of a tool that the caller named, or a JSON array of calls."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from octavo.serve.parts import Reader, Reading
from octavo.serve.tools.json_calls import read_calls
from octavo.types import InvalidRequest


@dataclass(frozen=True)
class NamedCall:
    """All of the text is the arguments of this tool."""

    name: str
    markers: tuple[str, ...] = ()

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        reader.mark()
        yield from reader.skip_space()
        if (yield from reader.peek()) != "{":
            return reader.refuse()
        reader.call(self.name)
        yield from reader.json_value(reader.arguments)
        yield from reader.skip_last_space()


@dataclass(frozen=True)
class ListedCalls:
    """`[{"name": ..., "parameters": {...}}, ...]`."""

    markers: tuple[str, ...] = ()

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        reader.mark()
        yield from reader.skip_space()
        if (yield from read_calls(reader)):
            yield from reader.skip_last_space()
        else:
            reader.refuse()


def list_schema(parameters: Mapping[str, dict[str, Any]], max_calls: int | None) -> dict[str, Any]:
    """The JSON schema of such a list, from the schemas of the tools' parameters by name. Raises `InvalidRequest`."""
    definitions: dict[str, dict[str, Any]] = {}
    calls: list[dict[str, Any]] = []
    for name, schema in parameters.items():
        own = dict(schema)
        for key in ("$defs", "definitions"):  # references count from the root
            for title, definition in own.pop(key, {}).items():
                if definitions.setdefault(key, {}).setdefault(title, definition) != definition:
                    raise InvalidRequest("tools", name, f"{key}.{title} means something else in another tool; give them different names")
        fields = {"name": {"const": name}, "parameters": own}
        calls.append({"type": "object", "properties": fields, "required": ["name", "parameters"], "additionalProperties": False})
    most = {} if max_calls is None else {"maxItems": max_calls}
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **most, **definitions}
