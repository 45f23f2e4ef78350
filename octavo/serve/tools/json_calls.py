"""A call written as a JSON object, {"name": ..., "arguments": {...}}, in whatever order and with whatever else in it."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from octavo.serve.parts import Reader, Reading

ARGUMENTS = ("arguments", "parameters")


def read_call(reader: Reader, known: Container[str] | None = None) -> Reading[bool]:
    """Tells the call that the object is; False: it is none, and nothing was told. With `known` only a tool of these names is called.

    Arguments are told as they come once the name is known. An object that breaks off after its name is a call that breaks off.
    """
    if not (yield from reader.take("{")):
        return False
    name: str | None = None
    given: str | None = None  # arguments: those before the name are kept until it is known
    closed = False
    while not (closed := (yield from _closes(reader))):
        key = yield from _decoded(reader)
        yield from reader.skip_space()
        if not isinstance(key, str) or not (yield from reader.take(":")):
            break
        yield from reader.skip_space()
        if key == "name" and name is None:
            value = yield from _decoded(reader)
            if not isinstance(value, str) or not value or (known is not None and value not in known):
                return False
            name = value
            reader.call(name)
            reader.arguments(given or "")
        elif key in ARGUMENTS and given is None:
            given = yield from _arguments(reader, name is not None)
            if given is None:
                break
        elif not (yield from reader.json_value(_nothing)):
            break
    if closed and name is not None and given is None:
        reader.arguments("{}")
    return name is not None


def read_calls(reader: Reader, known: Container[str] | None = None) -> Reading[bool]:
    """Tells a JSON array of calls; False: it is none, and nothing was told."""
    if not (yield from reader.take("[")):
        return False
    found = False
    while True:
        yield from reader.skip_space()
        if not (yield from read_call(reader, known)):
            break
        found = True
        yield from reader.skip_space()
        if not (yield from reader.take(",")):
            break
    if found:
        yield from reader.take("]")
    return found


def _closes(reader: Reader) -> Reading[bool]:
    """Goes to the next key of an object, or past its end."""
    yield from reader.skip_space()
    if (yield from reader.take(",")):
        yield from reader.skip_space()
    return (yield from reader.take("}"))


def _decoded(reader: Reader) -> Reading[Any]:
    """The next JSON value; None where there is no valid one."""
    text = yield from _text(reader)
    return None if text is None else _parsed(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _arguments(reader: Reader, named: bool) -> Reading[str | None]:
    """The next value as the JSON text of arguments, told already if the call has been; None where the text is cut off.

    Some models write that text as a string, and null where there are no arguments.
    """
    if named and (yield from reader.peek()) in ("{", "["):
        return "" if (yield from reader.json_value(reader.arguments)) else None
    text = yield from _text(reader)
    if text is not None and text[:1] not in ("{", "["):
        value = _parsed(text)
        text = "{}" if value in (None, "") else value if isinstance(value, str) else text
    if named:
        reader.arguments(text or "")
    return text


def _text(reader: Reader) -> Reading[str | None]:
    taken: list[str] = []
    whole = yield from reader.json_value(taken.append)
    return "".join(taken) if whole else None


def _nothing(text: str) -> None:
    pass
