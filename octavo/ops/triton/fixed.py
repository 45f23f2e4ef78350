"""A product whose tiles are the same for any number of rows, so that a row's sum has one order (see `octavo/ops/invariant.py`).

Plain tiles of BLOCK_M x BLOCK_N with the whole sum over K in one program. Floor: the weight once through memory for few rows; but with few
outputs there are fewer programs than multiprocessors (48 for 6,144 outputs), which is this product's price at few rows.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.linear import added

BLOCK_M, BLOCK_N, BLOCK_K = 64, 128, 64
TURN = 8  # tiles of rows that take the same weights one after the other, so that L2 holds them


@triton.jit
def _fixed(
    x, weight, bias, y, rows, n, k, x_stride, w_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TURN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    num_m, num_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(n, BLOCK_N)
    program = tl.program_id(0)
    first = program // (TURN * num_n) * TURN
    height = tl.minimum(num_m - first, TURN)
    tile_m = first + program % (TURN * num_n) % height
    tile_n = program % (TURN * num_n) // height
    at_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    x_at = x + at_m.to(tl.int64)[:, None] * x_stride + at_k[None, :]
    w_at = weight + at_n.to(tl.int64)[None, :] * w_stride + at_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        there = start + at_k < k
        left = tl.load(x_at + start, mask=(at_m < rows)[:, None] & there[None, :], other=0.0)
        right = tl.load(w_at + start, mask=(at_n < n)[None, :] & there[:, None], other=0.0)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if bias is not None:
        acc += tl.load(bias + at_n, mask=at_n < n, other=0.0).to(tl.float32)[None, :]
    here = (at_m < rows)[:, None] & (at_n < n)[None, :]
    tl.store(y + at_m.to(tl.int64)[:, None] * n + at_n[None, :], acc.to(y.dtype.element_ty), mask=here)


def fixed_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """residual + scale * (x W^T + bias). x [rows, k], weight [n, k]."""
    (rows, k), n = x.shape, weight.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, BLOCK_M) * triton.cdiv(n, BLOCK_N),)
    if rows:
        _fixed[grid](
            x, weight, bias, y, rows, n, k, x.stride(0), weight.stride(0),
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K if x.element_size() == 2 else BLOCK_K // 2, TURN=TURN,
            PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_warps=4, num_stages=4,
        )  # fmt: skip
    return added(y, residual, scale)
