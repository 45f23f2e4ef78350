"""Llama 4 and others: the whole text is a Python list of calls, `[get_weather(city="Rome"), now()]`, between two markers or without.

A call is told when it is complete, since its arguments have to be put into JSON. Only the name of a tool that was offered makes a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Set as AbstractSet
from typing import Any

from octavo.serve.parts import Reader, Reading

OPENING, CLOSING = "<|python_start|>", "<|python_end|>"
MAX_CALL_CHARACTERS = 65_536
STRUCTURE = re.compile(r"""["'()\[\]{}]""")
STRING_END = {quote: re.compile(rf"[\\{quote}]") for quote in "\"'"}
JSON_NAMES = {"true": True, "false": False, "null": None}


class Pythonic:
    markers = (OPENING, CLOSING)

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        reader.mark()
        yield from reader.skip_space()
        yield from reader.take(OPENING)
        yield from reader.skip_space()
        if not (yield from reader.take("[")):
            return reader.refuse()
        while True:
            yield from reader.skip_space()
            call = parsed_call((yield from _call_text(reader)))
            if call is None or call[0] not in known:
                return reader.refuse()
            reader.call(call[0])
            reader.arguments(call[1])
            reader.mark()
            yield from reader.skip_space()
            if not (yield from reader.take(",")):
                break
        yield from reader.take("]")
        yield from reader.skip_space()
        yield from reader.take(CLOSING)
        reader.accept()
        yield from reader.skip_last_space()


def _call_text(reader: Reader) -> Reading[str]:
    """Up to the bracket that closes the first one; empty where there is none."""
    taken: list[str] = []
    depth = 0
    while True:
        yield from reader.run(STRUCTURE, taken.append)
        found = yield from reader.peek()
        if not found or (depth == 0 and found != "("):
            return ""
        reader.one(taken.append)
        if found in STRING_END:
            yield from _string(reader, found, taken)
        else:
            depth += 1 if found in "([{" else -1
        if depth == 0:
            return "".join(taken)


def _string(reader: Reader, quote: str, taken: list[str]) -> Reading[None]:
    """The rest of a string, with its closing quote."""
    while True:
        yield from reader.run(STRING_END[quote], taken.append)
        found = yield from reader.peek()
        if found:
            reader.one(taken.append)
        if found != "\\":
            return
        if (yield from reader.peek()):
            reader.one(taken.append)


def parsed_call(text: str) -> tuple[str, str] | None:
    """A function's name and its arguments as JSON text; None for what is no call with keyword arguments of plain values."""
    if not text or len(text) > MAX_CALL_CHARACTERS:
        return None
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {_keyword(keyword): _value(keyword.value) for keyword in call.keywords}
        return ast.unparse(call.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _keyword(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("**arguments have no names")
    return keyword.arg


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value) if value is None or isinstance(value, (str, int, float)):
            return value
        case ast.List(elts) | ast.Tuple(elts):
            return [_value(element) for element in elts]
        case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys):
            return {key.value: _value(value) for key, value in zip(keys, values)}  # pyright: ignore
        case ast.UnaryOp(ast.USub(), ast.Constant(value)) if isinstance(value, (int, float)):
            return -value
        case ast.Name(name) if name in JSON_NAMES:
            return JSON_NAMES[name]
        case _:
            raise ValueError("not a plain value")
