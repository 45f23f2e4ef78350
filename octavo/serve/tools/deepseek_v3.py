"""DeepSeek V3 and R1: a list of calls, each with its kind, its name and its arguments in a fence; V3.1: name and arguments alone."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from octavo.serve.parts import Reader, Reading

OPENING, CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
FENCE = "```"


class DeepSeekV3:
    markers = (OPENING, CLOSING, CALL, SEPARATOR, CALL_END)

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        while (yield from reader.text_until(OPENING, reader.content)):
            yield from reader.skip_space()
            if (yield from _read_call(reader)):
                yield from _read_more(reader)
            else:
                reader.refuse()


def _read_more(reader: Reader) -> Reading[None]:
    """The calls after the first, and the end of the list."""
    while True:
        yield from reader.skip_space()
        reader.mark()
        if not (yield from _read_call(reader)):
            break
    reader.refuse()
    yield from reader.take(CLOSING)
    yield from reader.skip_last_space()


def _read_call(reader: Reader) -> Reading[bool]:
    if not (yield from reader.take(CALL)):
        return False
    name = yield from reader.until(SEPARATOR)
    yield from reader.skip_space()
    if name is not None and (yield from reader.peek()) != "{":
        name = yield from reader.until("\n")
        yield from reader.take(FENCE + "json")
        yield from reader.skip_space()
    if not name or (yield from reader.peek()) != "{":
        return False
    reader.call(name.strip())
    yield from reader.json_value(reader.arguments)
    yield from reader.skip_space()
    yield from reader.take(FENCE)
    yield from reader.skip_space()
    yield from reader.take(CALL_END)
    return True
