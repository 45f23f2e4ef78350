"""Products of tokens with their experts' weights where those lie in MXFP4 (octavo/ops/mxfp4.py), widened in registers.

Floor: as in `grouped.py`, with 17 bytes in place of 64 for 32 weights. GPT-OSS-20B (32 experts of 13.2 MB a layer, 4 a token) reads 53 MB a
layer for one token and 423 MB from 20 tokens on: 12 and 100 us on an H200, over 24 layers 0.3 and 2.4 ms.

A stretch of bytes [n, BLOCK_K / 2] holds in its low halves the values of the first 16 numbers of each group of 32, in its high halves those
of the other 16; so two stretches of x meet two tiles of weights and nothing is interleaved. Of a code s e e m the last three bits, moved
to the top of a float32's mantissa and the low end of its exponent, are a number that is 2^126 times too small, 0.5 too (as a subnormal).
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.mxfp4 import Mxfp4
from octavo.ops.route import Routes
from octavo.ops.table import Grouped
from octavo.ops.triton.dependent import follow
from octavo.ops.triton.grouped import GATES, TritonGrouped, _gated, _product, weighted_sum, write_tile
from octavo.ops.triton.share_out import Tiles

_GROUP = 32


@triton.jit
def _widened(code, scale):
    """Codes in the low four bits of `code` uint8, times their scales."""
    bits = code.to(tl.int32)
    small = (((bits & 7) << 22) | ((bits & 8) << 28)).to(tl.float32, bitcast=True)
    return small * 8.507059173023462e37 * scale


@triton.jit
def _stretch(codes, scales, at, K: tl.constexpr, start, SIZE: tl.constexpr):
    """Of rows `at` [n, 1] (counted over all experts) the values from `start` on, [n, SIZE / 2] twice, and the columns of the first."""
    byte = start // 2 + tl.arange(0, SIZE // 2)
    column = byte // 16 * 32 + byte % 16
    inside = (byte < K // 2)[None, :]
    code = tl.load(codes + at * (K // 2) + byte[None, :], mask=inside, other=0)
    power = tl.load(scales + at * (K // 32) + (byte // 16)[None, :], mask=inside, other=0)
    scale = (power.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return _widened(code & 15, scale), _widened(code >> 4, scale), column, inside


@triton.jit
def _packed_tiles(
    x, codes, scales, bias, records, order, y, N, x_stride,
    K: tl.constexpr, PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATE: tl.constexpr, BIAS: tl.constexpr, SWAP: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_tiles` in `grouped.py`."""
    HALVES: tl.constexpr = 2 if GATE > 0 else 1
    follow(PDL)
    record = records + tl.program_id(1) * 4
    rows = tl.load(record + 2)
    if rows == 0:
        return
    expert, first = tl.load(record).to(tl.int64), tl.load(record + 1)
    m = tl.arange(0, BLOCK_M)
    inside_m = m < rows
    pair = tl.load(order + first + m, mask=inside_m, other=0)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, N - 1)
    w_at = (expert * (HALVES * N) + at)[:, None]
    x_rows = x + (pair // PER_ROW).to(tl.int64)[:, None] * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    up = acc
    for start in tl.range(0, K, BLOCK_K):
        low, high, column, inside = _stretch(codes, scales, w_at, K, start, BLOCK_K)
        value = tl.load(x_rows + column[None, :], mask=inside_m[:, None] & inside, other=0.0)
        other = tl.load(x_rows + 16 + column[None, :], mask=inside_m[:, None] & inside, other=0.0)
        acc = _product(value, low.to(value.dtype), acc, SWAP, PRECISION)
        acc = _product(other, high.to(value.dtype), acc, SWAP, PRECISION)
        if GATE > 0:
            low, high, column, inside = _stretch(codes, scales, w_at + N, K, start, BLOCK_K)
            up = _product(value, low.to(value.dtype), up, SWAP, PRECISION)
            up = _product(other, high.to(value.dtype), up, SWAP, PRECISION)
    write_tile(acc, up, bias, expert, y, pair, inside_m, n, at, N, GATE, BIAS, SWAP)


@triton.jit
def _packed_pairs(
    x, codes, scales, bias, chosen, y, N, x_stride, num_experts,
    K: tl.constexpr, PER_ROW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """As `_pairs`, a stretch after the other; the second product, which has no gate, too: `weighted_sum` follows it."""
    HALVES: tl.constexpr = 2 if GATE > 0 else 1
    follow(PDL)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair)
    if (expert < 0) | (expert >= num_experts):
        return
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, N - 1)
    w_at = (expert.to(tl.int64) * (HALVES * N) + at)[:, None]
    x_row = x + pair // PER_ROW * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_K // 2), tl.float32)
    up = acc
    for start in tl.range(0, K, BLOCK_K):
        low, high, column, inside = _stretch(codes, scales, w_at, K, start, BLOCK_K)
        value = tl.load(x_row + column[None, :], mask=inside, other=0.0).to(tl.float32)
        other = tl.load(x_row + 16 + column[None, :], mask=inside, other=0.0).to(tl.float32)
        acc += low * value + high * other
        if GATE > 0:
            low, high, column, inside = _stretch(codes, scales, w_at + N, K, start, BLOCK_K)
            up += low * value + high * other
    total = tl.sum(acc, axis=1)
    gated = tl.sum(up, axis=1)
    if BIAS:
        of_expert = bias + expert.to(tl.int64) * (HALVES * N) + at
        total += tl.load(of_expert).to(tl.float32)
        if GATE > 0:
            gated += tl.load(of_expert + N).to(tl.float32)
    if GATE > 0:
        total = _gated(total, gated, GATE)
    tl.store(y + pair * N + n, total.to(y.dtype.element_ty), mask=n < N)


class TritonMxfp4:
    """Bound to a device, by the products of plain experts there."""

    def __init__(self, plain: TritonGrouped) -> None:
        self._plain = plain

    def linear(self, x: torch.Tensor, weight: Mxfp4, bias: torch.Tensor | None, routes: Routes, gate: str) -> torch.Tensor:
        return self._product(x, weight, bias, routes, gate)

    def sum(
        self, x: torch.Tensor, weight: Mxfp4, bias: torch.Tensor | None, routes: Routes, residual: torch.Tensor | None
    ) -> torch.Tensor:
        return weighted_sum(self._product(x, weight, bias, routes, None), routes, residual, self._plain.dependent)

    def _product(self, x: torch.Tensor, weight: Mxfp4, bias: torch.Tensor | None, routes: Routes, gate: str | None) -> torch.Tensor:
        block_m = 1 if routes.work is None else routes.work.block_m
        return packed_grouped(x, weight, bias, routes, gate, cut_for(block_m, gate is not None), self._plain.dependent)


def cut_for(block_m: int, gate: bool) -> Grouped:
    """Not tuned on a card yet: by registers and shared memory of what the compiler makes of it."""
    if block_m == 1:
        return Grouped(1, 4, 512, warps=4)
    if block_m <= 32:
        return Grouped(block_m, 64, 128, warps=4, stages=3, swap=True)
    return Grouped(block_m, 64 if gate else 128, 64, warps=4 if block_m == 64 else 8, stages=3)


def packed_grouped(
    x: torch.Tensor, weight: Mxfp4, bias: torch.Tensor | None, routes: Routes, gate: str | None, cut: Grouped, dependent: bool
) -> torch.Tensor:
    """As `grouped`, whose `block_m` 1 may here be without a gate."""
    n, k = weight.out_features // (2 if gate else 1), weight.in_features
    assert weight.codes.is_contiguous()
    assert weight.scales.is_contiguous()
    assert x.stride(1) == 1
    y = torch.empty((routes.num_pairs, n), dtype=x.dtype, device=x.device)
    per_row = routes.chosen.shape[1] if gate else 1
    fixed = {"K": k, "PER_ROW": per_row, "BLOCK_N": cut.block_n, "BLOCK_K": max(cut.block_k, _GROUP), "GATE": GATES[gate]}
    fixed |= {"BIAS": bias is not None, "PDL": dependent, "num_warps": cut.warps}
    launch = {"launch_pdl": True} if dependent else {}
    blocks = triton.cdiv(n, cut.block_n)
    if cut.block_m == 1:
        _packed_pairs[(blocks, routes.num_pairs)](
            x, weight.codes, weight.scales, bias, routes.chosen, y, n, x.stride(0), routes.num_experts, **fixed, **launch
        )
        return y
    tiles: Tiles = routes.work
    assert tiles.block_m == cut.block_m
    _packed_tiles[(blocks, tiles.records.numel() // 4)](
        x, weight.codes, weight.scales, bias, tiles.records, tiles.order, y, n, x.stride(0), BLOCK_M=cut.block_m, SWAP=cut.swap,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_stages=cut.stages, **fixed, **launch,
    )  # fmt: skip
    return y
