"""Messages between front and engine over ZMQ, packed with msgpack: one message a step, not one a token.

The engine binds one ROUTER socket; each front connects a DEALER. News is written by hand as short tuples since it is the only traffic whose
cost is paid for every token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from octavo.engine.messages import Abort, Add, Ask, Command, Finish, Stop
from octavo.types import FinishReason, SequenceOutput, TokenLogprobs

_COMMANDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Add, Finish, Abort, Ask, Stop)}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def encode_command(command: Command) -> bytes:
    return _encoder.encode((type(command).__name__, command))


def decode_command(data: bytes) -> Command:
    name, body = _decoder.decode(data)
    return msgspec.convert(body, _COMMANDS[name], str_keys=False)


def encode_news(outputs: Sequence[SequenceOutput]) -> bytes:
    return _encoder.encode(("news", [_pack(output) for output in outputs]))


def encode_answer(ask_id: str, value: object) -> bytes:
    return _encoder.encode(("answer", (ask_id, value)))


def decode_reply(data: bytes) -> tuple[str, Any]:
    """("news", a list for `is_token` and `as_output`) or ("answer", (id, value))."""
    kind, body = _decoder.decode(data)
    return kind, body


def is_token(item: list[Any]) -> bool:
    """Whether the item is request id, continuation and the id of one more token, and nothing else: so is most of all news."""
    return len(item) == 3


def _pack(output: SequenceOutput) -> tuple[Any, ...]:
    more = output.finish_reason is not None or output.num_cached_tokens is not None or output.logprobs or output.prompt_logprobs
    if len(output.token_ids) == 1 and not more:
        return output.request_id, output.index, output.token_ids[0]
    return (
        output.request_id,
        output.index,
        output.token_ids,
        [_pack_logprobs(item) for item in output.logprobs],
        [_pack_logprobs(item) for item in output.prompt_logprobs],
        output.finish_reason,
        output.stop_reason,
        output.num_cached_tokens,
        output.num_preemptions,
        output.queued_s,
        output.cache_miss,
        output.pooled,
    )


def as_output(item: list[Any]) -> SequenceOutput:
    """What an item that is not one token says."""
    request_id, index, tokens, logprobs, prompt_logprobs, finish, stop, cached, preemptions, queued_s, miss, pooled = item
    return SequenceOutput(
        request_id,
        index,
        tuple(tokens),
        tuple(_unpack_logprobs(logprobs)),
        tuple(_unpack_logprobs(prompt_logprobs)),
        None if finish is None else FinishReason(finish),
        stop,
        cached,
        preemptions,
        queued_s,
        miss,
        pooled,
    )


def _pack_logprobs(item: TokenLogprobs) -> tuple[Any, ...]:
    return item.token_ids, item.logprobs, item.rank


def _unpack_logprobs(items: Iterable[list[Any]]) -> Iterable[TokenLogprobs]:
    return (TokenLogprobs(tuple(ids), tuple(values), rank) for ids, values, rank in items)
