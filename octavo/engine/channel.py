"""Messages between front and engine over ZMQ, packed with msgpack: one message a step, not one a token.

The engine binds one ROUTER socket; each front connects a DEALER.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from octavo.engine.messages import Abort, Add, Ask, Command, Finish, Stop
from octavo.engine.news import is_token, pack_all
from octavo.types import SequenceOutput

_COMMANDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Add, Finish, Abort, Ask, Stop)}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
TOKEN = struct.Struct("<QI")  # the number of a continuation, the id of one more token


def encode_command(command: Command) -> bytes:
    return _encoder.encode((type(command).__name__, command))


def decode_command(data: bytes) -> Command:
    name, body = _decoder.decode(data)
    return msgspec.convert(body, _COMMANDS[name], str_keys=False)


class News:
    """A step's news for one front: what is one more token and nothing else, which is most, as `TOKEN`s, the rest whole. A step tells of a
    continuation once, so the order does not matter."""

    def __init__(self) -> None:
        self._tokens = bytearray()
        self._rest: list[tuple[Any, ...]] = []

    def add(self, number: int, output: SequenceOutput) -> None:
        """`number` is the continuation's."""
        if is_token(output):
            self._tokens += TOKEN.pack(number, output.token_ids[0])
        else:
            self._rest.append(pack_all(output))

    def encoded(self) -> bytes:
        return _encoder.encode(("news", (self._tokens, self._rest)))


def encode_answer(ask_id: str, value: object) -> bytes:
    return _encoder.encode(("answer", (ask_id, value)))


def decode_reply(data: bytes) -> tuple[str, Any]:
    """("news", (`TOKEN`s, items for `as_output`)) or ("answer", (id, value))."""
    kind, body = _decoder.decode(data)
    return kind, body
