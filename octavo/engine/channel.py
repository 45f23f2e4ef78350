"""Messages between front and engine over ZMQ, packed with msgpack: one message a step, not one a token.

The engine binds one ROUTER socket; each front connects a DEALER.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.engine.messages import Abort, Add, Ask, Command, Finish, Stop
from octavo.engine.news import pack
from octavo.types import SequenceOutput

_COMMANDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Add, Finish, Abort, Ask, Stop)}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode_command(command: Command) -> bytes:
    return _encoder.encode((type(command).__name__, command))


def decode_command(data: bytes) -> Command:
    name, body = _decoder.decode(data)
    return msgspec.convert(body, _COMMANDS[name], str_keys=False)


def encode_news(outputs: Sequence[SequenceOutput]) -> bytes:
    return _encoder.encode(("news", [pack(output) for output in outputs]))


def encode_answer(ask_id: str, value: object) -> bytes:
    return _encoder.encode(("answer", (ask_id, value)))


def decode_reply(data: bytes) -> tuple[str, Any]:
    """("news", a list for `is_token` and `as_output`) or ("answer", (id, value))."""
    kind, body = _decoder.decode(data)
    return kind, body
