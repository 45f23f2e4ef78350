"""An engine's news as short tuples: the only traffic whose cost is paid for every token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.types import FinishReason, SequenceOutput, TokenLogprobs


def is_token(output: SequenceOutput) -> bool:
    """Whether the news is one more token and nothing else: so is most of all news."""
    more = output.finish_reason is not None or output.num_cached_tokens is not None or output.logprobs or output.prompt_logprobs
    return len(output.token_ids) == 1 and not more


def pack(output: SequenceOutput) -> tuple[Any, ...]:
    """As three fields where the news is one token and nothing else, else as all of them."""
    return (output.request_id, output.index, output.token_ids[0]) if is_token(output) else pack_all(output)


def pack_all(output: SequenceOutput) -> tuple[Any, ...]:
    """As all fields."""
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


def as_output(item: Sequence[Any]) -> SequenceOutput:
    """What `pack_all` made of an output."""
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


def unpack(item: Sequence[Any]) -> SequenceOutput:
    """What `pack` made of an output; tuples may have become lists on the way."""
    return SequenceOutput(item[0], item[1], (item[2],)) if len(item) == 3 else as_output(item)
