"""Server-sent events: the one place that knows their framing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.serve.writer import Writer

DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode
MARK = "\x00text\x00"


def event(value: msgspec.Struct) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """An event with a name of its own."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


class TextTemplate:
    """A chunk of which only the text changes: encoded once, so that a token costs the encoding of its text alone. The text may stand in it
    more than once, as under several names."""

    __slots__ = ("_around",)

    def __init__(self, chunk: Callable[[str], msgspec.Struct]) -> None:
        self._around = tuple(event(chunk(MARK)).split(encode(MARK)))

    def event(self, text: str) -> bytes:
        return encode(text).join(self._around)

    def teller(self, writer: Writer) -> TextTeller:
        return TextTeller(self._around, writer)


class TextTeller:
    """Writes an event of each text that is not empty."""

    __slots__ = ("_around", "_writer")

    def __init__(self, around: tuple[bytes, ...], writer: Writer) -> None:
        self._around, self._writer = around, writer

    def tell(self, text: str) -> None:
        if text:
            self._writer.write(encode(text).join(self._around))
