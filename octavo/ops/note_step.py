"""What a step leaves in the rows of its sequences: how far they are computed, and the token that each is fed next."""

from __future__ import annotations

import torch


def note_step(
    computed: torch.Tensor,
    last_token: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    sampled: torch.Tensor,
    newest: torch.Tensor,
    padding: int,
) -> None:
    """Fixed shapes, no host: a graph can capture it.

    computed    [R] int32, last_token [R] int64: columns of the rows; the row `padding` stays at 0
    rows        [S] int32 of the slices, starts [S + 1] int32: slice s fed starts[s + 1] - starts[s] tokens
    sampled     [N] int64: rows that sampled, newest [N] int64: the token of each
    """
    computed.index_add_(0, rows, starts.diff())
    last_token.index_copy_(0, sampled, newest)
    computed[padding].zero_()
