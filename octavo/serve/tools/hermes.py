"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, anywhere in the text."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from octavo.serve.parts import Reader, Reading
from octavo.serve.tools.json_calls import read_call

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Hermes:
    markers = (OPENING, CLOSING)

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        while (yield from reader.text_until(OPENING, reader.content)):
            yield from reader.skip_space()
            if (yield from read_call(reader)):
                yield from reader.skip_space()
                yield from reader.take(CLOSING)
                yield from reader.skip_last_space()
            else:
                reader.refuse()
