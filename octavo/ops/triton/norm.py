"""RMS norm and its fusion with the residual add. A row is read once and written once: for [T, n] bf16 the fused form moves 8 T n bytes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch


@triton.jit
def _rms_norm(x, y, weight, n, x_stride, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    tl.store(y + row * n + at, value * scale * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def _add_rms_norm(x, residual, y, weight, n, eps, scale, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    add = tl.load(x + row * n + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(residual + row * n + at, mask=inside, other=0.0).to(tl.float32) + scale * add
    total = total.to(residual.dtype.element_ty)  # rounded as it is kept, so that norm and stream agree
    tl.store(residual + row * n + at, total, mask=inside)
    value = total.to(tl.float32)
    norm = tl.rsqrt(tl.sum(value * value, axis=0) / n + eps)
    tl.store(y + row * n + at, value * norm * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., n]; rows may be apart (a slice of a wider tensor) if x has two axes."""
    n = x.shape[-1]
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.contiguous().view(-1, n)
    y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        block = triton.next_power_of_2(n)
        _rms_norm[(rows.shape[0],)](
            rows, y, weight, n, rows.stride(0), eps, BLOCK=block, num_warps=_warps(block), **launch(x.device)
        )
    return y.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes the new residual over the old."""
    y = torch.empty_like(residual)
    if x.shape[0]:
        block = triton.next_power_of_2(x.shape[1])
        _add_rms_norm[(x.shape[0],)](
            x, residual, y, weight, x.shape[1], eps, scale, BLOCK=block, num_warps=_warps(block), **launch(x.device)
        )
    return y, residual


def _warps(block: int) -> int:
    return min(16, max(1, block // 256))
