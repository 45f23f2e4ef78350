"""Calls that a grammar has forced: the text is the arguments of a tool that the caller named, or a JSON array of calls."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from octavo.serve.parts import Reader, Reading
from octavo.serve.tools.json_calls import read_calls


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
