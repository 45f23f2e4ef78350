"""Rows of the embedding table, gathered in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch


@triton.jit
def _embedding(tokens, weight, y, n, first, num_rows, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    local = tl.load(tokens + row) - first
    here = (local >= 0) & (local < num_rows)
    value = tl.load(weight + local * n + at, mask=here & (at < n), other=0.0)
    tl.store(y + row * n + at, value, mask=at < n)


def embedding(tokens: torch.Tensor, weight: torch.Tensor, first: int) -> torch.Tensor:
    n = weight.shape[1]
    y = torch.empty((tokens.shape[0], n), dtype=weight.dtype, device=weight.device)
    if tokens.shape[0]:
        block = min(1024, triton.next_power_of_2(n))
        _embedding[(tokens.shape[0], triton.cdiv(n, block))](
            tokens, weight, y, n, first, weight.shape[0], BLOCK=block, **launch(weight.device)
        )
    return y
