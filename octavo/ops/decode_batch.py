"""What a decode step feeds: for each row its last token, at its position, into its slot. Part of every captured step."""

from __future__ import annotations

import torch


def decode_batch(
    row_ids: torch.Tensor,
    computed: torch.Tensor,
    last_token: torch.Tensor,
    block_table: torch.Tensor,
    padding: int,
    block_tokens: int,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    first: bool,
) -> None:
    """Fill `slots` [S] int64 of one KV group and, with `first`, `out`: tokens and positions [S] int64, lengths and rows [S] int32.

    row_ids      [S] int64; those equal to `padding` get length 0 and slot -1
    computed     [R] int32, last_token [R] int64, block_table [R, width] int32: columns of the rows
    """
    real = row_ids != padding  # [S]
    position = torch.where(real, computed[row_ids], 0).to(torch.int64)
    if first:
        tokens, positions, lengths, rows = out
        tokens.copy_(last_token[row_ids])
        positions.copy_(position)
        lengths.copy_(position + real)
        rows.copy_(row_ids)
    block = block_table[row_ids, position // block_tokens].to(torch.int64)
    slots.copy_(torch.where(real, block * block_tokens + position % block_tokens, -1))
