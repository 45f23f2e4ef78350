"""The batch of a decode step from the rows, in one launch per KV group: what `BatchBuilder.decode` describes with torch operations."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch

_BLOCK = 128


@triton.jit
def _decode_batch(
    row_ids, computed, last_token, table, tokens, positions, lengths, rows, slots, num, padding, width, block_tokens,
    FIRST: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num
    row = tl.load(row_ids + at, mask=inside, other=padding)
    real = row != padding
    position = tl.where(real, tl.load(computed + row, mask=inside, other=0), 0).to(tl.int64)
    if FIRST:
        tl.store(tokens + at, tl.load(last_token + row, mask=inside, other=0), mask=inside)
        tl.store(positions + at, position, mask=inside)
        tl.store(lengths + at, (position + real.to(tl.int64)).to(tl.int32), mask=inside)
        tl.store(rows + at, row.to(tl.int32), mask=inside)
    block = tl.load(table + row * width + position // block_tokens, mask=inside, other=0).to(tl.int64)
    tl.store(slots + at, tl.where(real, block * block_tokens + position % block_tokens, -1), mask=inside)


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
    """Fill `slots` [S] of one KV group and, with `first`, `out`: tokens [S], positions [S], lengths [S], rows [S]."""
    num = row_ids.numel()
    _decode_batch[(triton.cdiv(num, _BLOCK),)](
        row_ids, computed, last_token, block_table, *out, slots, num, padding, block_table.shape[1], block_tokens,
        FIRST=first, BLOCK=_BLOCK, num_warps=4, **launch(row_ids.device),
    )  # fmt: skip
