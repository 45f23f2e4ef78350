"""The product of one row with a weight matrix: nothing but the weight's stream, with norm, gate, bias and residual around it.

A program keeps x, normed, in registers and takes whole weight rows: BLOCK_N of them (of each half, with a gate) at a time, the next ones on
their way while these are multiplied in float32 and summed. So the sums and the store of one group hide behind the loads of the next, and
where a program has one group only, all it reads of the weight is asked for before anything else. With dependent launch (sm_90) that is
before the kernel ahead has ended: its results are waited for only then, which hides launch, ramp and tail of a short product.

Floor: 2 N K bytes over the memory's rate, as in `skinny.py`. Beside it each program reads x and the norm (6 K bytes) once, from L2.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.ops.table import OneRow
from octavo.ops.triton.skinny import GATES, activated


@triton.jit
def _group(weight, group, N, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATE: tl.constexpr):
    """Whole rows [BLOCK_N, BLOCK_K], or [2 BLOCK_N, BLOCK_K] of gates and ups in turn; nothing is read for a group beyond the last."""
    if GATE > 0:
        i = tl.arange(0, 2 * BLOCK_N)
        row = tl.minimum(group * BLOCK_N + i // 2, N - 1) + i % 2 * N
    else:
        row = tl.minimum(group * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)
    k = tl.arange(0, BLOCK_K)
    inside = (k < K) & (group * BLOCK_N < N)
    return tl.load(weight + row.to(tl.int64)[:, None] * K + k[None, :], mask=inside[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _added(bias, residual, n, N, BLOCK_N: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr):
    """Biases of the product, of its second half, and the residual, for outputs n: asked for early, used late."""
    first = tl.zeros((BLOCK_N,), tl.float32)
    second = tl.zeros((BLOCK_N,), tl.float32)
    before = tl.zeros((BLOCK_N,), tl.float32)
    if BIAS:
        first = tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        if GATE > 0:
            second = tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)
    if ADD:
        before = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    return first, second, before


@triton.jit
def _write(w, value, factor, first, second, before, y, n, N, scale, BLOCK_N: tl.constexpr, GATE: tl.constexpr):
    """Multiply, sum and store one group."""
    acc = tl.sum(w.to(tl.float32) * value[None, :], axis=1) * factor
    if GATE > 0:
        gate, up = tl.split(tl.reshape(acc, (BLOCK_N, 2)))
        acc = activated(gate + first, GATE) * (up + second)
    else:
        acc += first
    tl.store(y + n, (acc * scale + before).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _one_row(
    x, weight, bias, norm, residual, y, N, eps, scale,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TURNS: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
    w = _group(weight, group, N, K, BLOCK_N, BLOCK_K, GATE)
    k = tl.arange(0, BLOCK_K)
    if NORM:
        norm_weight = tl.load(norm + k, mask=k < K, other=0.0)
    if PDL:
        gdc_wait()
    n = group * BLOCK_N + tl.arange(0, BLOCK_N)
    value = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
    first, second, before = _added(bias, residual, n, N, BLOCK_N, GATE, BIAS, ADD)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(value * value, axis=0) / K + eps)
        value *= norm_weight
    for _ in range(TURNS - 1):
        group += tl.num_programs(0)
        following = _group(weight, group, N, K, BLOCK_N, BLOCK_K, GATE)
        next_n = group * BLOCK_N + tl.arange(0, BLOCK_N)
        next_first, next_second, next_before = _added(bias, residual, next_n, N, BLOCK_N, GATE, BIAS, ADD)
        _write(w, value, factor, first, second, before, y, n, N, scale, BLOCK_N, GATE)
        w, n = following, next_n
        first, second, before = next_first, next_second, next_before
    _write(w, value, factor, first, second, before, y, n, N, scale, BLOCK_N, GATE)


def one_row(
    x: torch.Tensor,
    weight: torch.Tensor,
    config: OneRow,
    num_sms: int,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gate: str | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    dependent: bool = False,
) -> torch.Tensor:
    """x [1, K], weight [N, K] -> [1, N], or [1, N / 2] with a gate; with a residual that tensor, written over.

    dependent  launch programmatically: before the kernel ahead on the stream has ended (sm_90 and later)
    """
    k = x.shape[1]
    n = weight.shape[0] // 2 if gate else weight.shape[0]
    assert x.shape[0] == 1
    assert weight.shape[1] == k
    assert weight.is_contiguous()
    assert x.stride(1) == 1
    y = torch.empty((1, n), dtype=x.dtype, device=x.device) if residual is None else residual
    programs, turns = grid(config, n, num_sms)
    launch = {"launch_pdl": True} if dependent else {}
    fixed = constants(config, k, turns, norm is not None, gate, bias is not None, residual is not None, dependent)
    _one_row[(programs,)](x, weight, bias, norm, residual, y, n, eps, scale, num_warps=config.warps, **fixed, **launch)
    return y


def grid(config: OneRow, n: int, num_sms: int) -> tuple[int, int]:
    """How many programs there are, and how many groups the busiest of them has."""
    groups = triton.cdiv(n, config.block_n)
    most = config.per_sm * num_sms or groups
    turns = triton.cdiv(groups, most)
    return triton.cdiv(groups, turns), turns


def constants(
    config: OneRow, k: int, turns: int, norm: bool, gate: str | None, bias: bool, add: bool, dependent: bool
) -> dict[str, object]:
    """What the kernel is compiled for."""
    return {
        "K": k, "BLOCK_N": config.block_n, "BLOCK_K": triton.next_power_of_2(k), "TURNS": turns,
        "NORM": norm, "GATE": GATES[gate], "BIAS": bias, "ADD": add, "PDL": dependent,
    }  # fmt: skip
