"""Token masks that a grammar compiled on the host: packed bits, 32 tokens a word, the lowest bit first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.core.plan import Plan


@dataclass(frozen=True)
class Masks:
    """Which tokens a grammar allows next, for M of the N sampled positions."""

    at: tuple[int, ...]  # the M positions
    bits: torch.Tensor  # [M, ceil(vocab / 32)] int32: a set bit allows the token

    def part(self, begin: int, end: int) -> Masks:
        """Those of the positions from `begin` to `end`, counted from there."""
        held = [number for number, place in enumerate(self.at) if begin <= place < end]
        return Masks(tuple(self.at[number] - begin for number in held), self.bits[held])


def unpack(plan: Plan, packed: Sequence[bytes | None]) -> Masks | None:
    """The masks of a plan's `masked` slices, given as bytes in that order. None for a slice leaves its tokens alone."""
    place = dict(zip((i for i, piece in enumerate(plan.slices) if piece.sample), range(len(plan.slices))))
    found = [(place[i], bits) for i, bits in zip(plan.masked, packed, strict=True) if bits is not None]
    if not found:
        return None
    words = torch.frombuffer(bytearray(b"".join(bits for _, bits in found)), dtype=torch.int32)
    return Masks(tuple(at for at, _ in found), words.view(len(found), -1))


def mask_tokens(logits: torch.Tensor, masks: Masks) -> torch.Tensor:
    """Ban every token whose bit is not set. `logits` [N, vocab] float32, edited in place."""
    vocab_size = logits.shape[1]
    bits = masks.bits.to(logits.device)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((bits[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()  # [M, vocab]
    index = torch.tensor(masks.at, dtype=torch.int64, device=logits.device)
    return logits.index_copy_(0, index, logits[index].masked_fill_(~allowed, -torch.inf))
