"""Log-probabilities of token ids, named by what each token would add to the text at its place."""

from __future__ import annotations

from octavo.text.detokenize import Tokenizer
from octavo.types import Logprob, TokenLogprobs


def piece(pending: bytes, token: bytes) -> str:
    """What a token adds to a text whose last, incomplete character has the bytes `pending`; � for what stays incomplete."""
    return (pending + token).decode("utf-8", "replace")


def decode_position(entry: TokenLogprobs, tokenizer: Tokenizer | None, pending: bytes = b"") -> dict[int, Logprob]:
    """The chosen token first, then the alternatives by rank. Each is decoded on its own after the real context, since alternatives
    never follow each other. Without a tokeniser the texts are None."""
    position: dict[int, Logprob] = {}
    for rank, (token_id, logprob) in enumerate(zip(entry.token_ids, entry.logprobs)):
        text = None if tokenizer is None else piece(pending, tokenizer.token_bytes(token_id))
        position.setdefault(token_id, Logprob(logprob, entry.rank if rank == 0 else rank, text))
    return position
