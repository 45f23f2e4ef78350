"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, since tokeniser v11 `[TOOL_CALLS]name[ARGS]{...}` for each call."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from octavo.serve.parts import Reader, Reading
from octavo.serve.tools.json_calls import read_calls

OPENING, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral:
    markers = (OPENING, CALL_ID, ARGUMENTS)

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        while (yield from reader.text_until(OPENING, reader.content)):
            yield from reader.skip_space()
            if (yield from read_calls(reader)) or (yield from _read_named(reader)):
                yield from reader.skip_last_space()
            else:
                reader.refuse()


def _read_named(reader: Reader) -> Reading[bool]:
    name = yield from reader.name()
    if name and (yield from reader.take(CALL_ID)):
        yield from reader.name()  # an id of the model's own
    yield from reader.take(ARGUMENTS)
    yield from reader.skip_space()
    if not name or (yield from reader.peek()) != "{":
        return False
    reader.call(name)
    yield from reader.json_value(reader.arguments)
    return True
