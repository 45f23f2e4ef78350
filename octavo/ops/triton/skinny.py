"""The product with a weight matrix for few rows: bound by reading the weight, so everything beside it is fused around that one stream.

y = around(x W^T) for x [M, K], W [N, K] in at most a few dozen rows. Floor: 2 N K bytes (bf16) over the memory's rate; on an H200
(4.3 TB/s in practice) 55 us for 28672 x 4096, 27 for 4096 x 14336, 12 for 6144 x 4096, 8 for 4096 x 4096. Arithmetic is 2 M operations
a weight, far below the machine's balance up to 64 rows. What else a layer does between its products is a few kB a row, yet each of
those kernels costs a launch gap, a ramp and a tail; so this kernel also does, each where asked for:

- norm: x is the residual stream. x * w goes into the product, and the factor rsqrt(mean(x^2) + eps), one scalar a row, is applied to the
  result: the sum of squares is taken while streaming, without a second pass. x * w is rounded to x's dtype before tensor cores see it
  (not at all for one row); the unfused operation rounds after the factor, so the two differ by one rounding of the same relative size.
- gate: rows n and N / 2 + n of W are read in turn by the same program, which writes activation(gate) * up.
- residual: y = residual + scale * product, written over the residual.
- bias.

A program holds BLOCK_N rows (of each half, with a gate) for 1 / SPLIT of K. With SPLIT > 1 partial sums go to a float32 workspace and
the program that counts itself last of its rows adds them in a fixed order, so results do not depend on who came last; it also puts the
counter back to 0. BLOCK_M = 1 multiplies and adds in float32 lanes, larger ones use tensor cores on rows padded to BLOCK_M.

With PDL (programmatic dependent launch, sm_90) a program starts while the kernel before it drains, and waits for its results. Asking the
L2 for weights before that wait was tried: it cost more than it gave.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.table import Skinny
from octavo.ops.triton.dependent import follow

GATES = {None: 0, "silu": 1, "gelu_tanh": 2}
MAX_BLOCKS = 1 << 14  # counters of one workspace


@triton.jit
def _weights(weight, rows, k, K: tl.constexpr, EVEN: tl.constexpr):
    at = weight + rows.to(tl.int64)[:, None] * K + k[None, :]
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _row_product(
    x, weight, norm, rows, first,
    K: tl.constexpr, R: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """For one row of x: products with R weight rows, [1, R], and the sum of squares, [1]."""
    acc = tl.zeros((R, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for start in tl.range(0, PART, BLOCK_K, num_stages=STAGES, loop_unroll_factor=UNROLL):
        k = first + start + tl.arange(0, BLOCK_K)
        value = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value *= tl.load(norm + k, mask=k < K, other=0.0)
        acc += _weights(weight, rows, k, K, EVEN).to(tl.float32) * value[None, :]
    return tl.sum(acc, axis=1)[None, :], tl.sum(squares, axis=0) + tl.zeros((1,), tl.float32)


@triton.jit
def _tile_product(
    x, weight, norm, rows, m, M, x_stride, first,
    K: tl.constexpr, BLOCK_M: tl.constexpr, R: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for BLOCK_M rows with tensor cores: [BLOCK_M, R] and [BLOCK_M]."""
    acc = tl.zeros((R, BLOCK_M) if SWAP else (BLOCK_M, R), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    for start in tl.range(0, PART, BLOCK_K, num_stages=STAGES):
        k = first + start + tl.arange(0, BLOCK_K)
        value = tl.load(x_rows + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        if NORM:
            wide = value.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            value = (wide * tl.load(norm + k, mask=k < K, other=0.0)[None, :]).to(value.dtype)
        w = _weights(weight, rows, k, K, EVEN)
        if SWAP:
            acc = tl.dot(w, tl.trans(value), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(value, tl.trans(w), acc, input_precision=PRECISION)
    if SWAP:
        acc = tl.trans(acc)
    return acc, squares


@triton.jit
def activated(gate, GATE: tl.constexpr):
    if GATE == 1:
        gate = gate * tl.sigmoid(gate)
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2.0 * inner)  # (1 + tanh(z)) / 2 = sigmoid(2 z)
    return gate


@triton.jit
def _finish(
    acc, bias, residual, y, n, m, M, N, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Bias, gate, residual and the write of acc [BLOCK_M, BLOCK_N], or [BLOCK_M, 2 BLOCK_N] of gates and ups in turn; N outputs a row."""
    inside = (m < M)[:, None] & (n < N)[None, :]
    if GATE > 0:
        gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N, 2)))
        if BIAS:
            gate += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
            up += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        acc = activated(gate, GATE) * up
    elif BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    acc *= scale
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    if ADD:
        acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def _skinny(
    x, weight, bias, norm, residual, y, partial, counters, M, N, x_stride, eps, scale,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    PART: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT) * BLOCK_K
    EVEN: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    R: tl.constexpr = BLOCK_N * 2 if GATE > 0 else BLOCK_N
    block, part = tl.program_id(0), tl.program_id(1)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    rows = tl.minimum(n, N - 1)  # rows beyond the last repeat it, and are not written
    if GATE > 0:
        i = tl.arange(0, R)
        rows = tl.minimum(block * BLOCK_N + i // 2, N - 1) + i % 2 * N
    first = part * PART
    follow(PDL)
    if BLOCK_M == 1:
        acc, squares = _row_product(x, weight, norm, rows, first, K, R, BLOCK_K, PART, EVEN, NORM, STAGES, UNROLL)
    else:
        acc, squares = _tile_product(
            x, weight, norm, rows, m, M, x_stride, first, K, BLOCK_M, R, BLOCK_K, PART, EVEN, NORM, SWAP, STAGES, PRECISION
        )
    if NORM:
        acc *= tl.rsqrt(squares / K + eps)[:, None]
    if SPLIT == 1:
        _finish(acc, bias, residual, y, n, m, M, N, scale, BLOCK_M, BLOCK_N, GATE, BIAS, ADD)
    else:
        inside = (m < M)[:, None] & (n < N)[None, :]
        at = partial + m[:, None] * N + n[None, :]
        tl.store(at + part * M * N, acc, mask=inside)
        tl.debug_barrier()  # every thread's part is written before one of them counts the program
        if tl.atomic_add(counters + block, 1, sem="acq_rel", scope="gpu") == SPLIT - 1:
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for other in tl.static_range(SPLIT):
                total += tl.load(at + other * M * N, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(counters + block, 0)
            _finish(total, bias, residual, y, n, m, M, N, scale, BLOCK_M, BLOCK_N, GATE, BIAS, ADD)


def skinny(
    x: torch.Tensor,
    weight: torch.Tensor,
    config: Skinny,
    counters: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    gate: str | None = None,
    residual: torch.Tensor | None = None,
    scale: float = 1.0,
    dependent: bool = False,
) -> torch.Tensor:
    """x [M, K] with M <= config.block_m, weight [N, K] -> [M, N], or [M, N / 2] with a gate; with a residual that tensor, written over.

    counters   [MAX_BLOCKS] int32 zeros, left as zeros; shared by all products of one stream
    dependent  launch programmatically: before the kernel ahead on the stream has ended (sm_90 and later)
    """
    num_rows, k = x.shape
    n = weight.shape[0] // 2 if gate else weight.shape[0]
    assert weight.shape[1] == k, (weight.shape, x.shape)
    assert weight.is_contiguous()
    assert x.stride(1) == 1
    assert num_rows <= config.block_m
    assert config.split == 1 or (norm is None and gate is None), "a norm or gate needs whole sums"
    y = torch.empty((num_rows, n), dtype=x.dtype, device=x.device) if residual is None else residual
    assert y.is_contiguous()
    blocks = triton.cdiv(n, config.block_n)
    partial = torch.empty((config.split, num_rows, n), dtype=torch.float32, device=x.device) if config.split > 1 else y
    launch = {"launch_pdl": True} if dependent else {}
    fixed = constants(config, k, x.dtype, norm is not None, gate, bias is not None, residual is not None, dependent)
    _skinny[(blocks, config.split)](
        x, weight, bias, norm, residual, y, partial, counters, num_rows, n, x.stride(0), eps, scale,
        num_warps=config.warps, **fixed, **launch,
    )  # fmt: skip
    return y


def constants(
    config: Skinny, k: int, dtype: torch.dtype, norm: bool, gate: str | None, bias: bool, add: bool, dependent: bool
) -> dict[str, object]:
    """What the kernel is compiled for."""
    return {
        "K": k, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "SPLIT": config.split,
        "NORM": norm, "GATE": GATES[gate], "BIAS": bias, "ADD": add, "SWAP": config.swap, "STAGES": config.stages, "UNROLL": config.unroll,
        "PDL": dependent, "PRECISION": "ieee" if dtype is torch.float32 else "tf32",
    }  # fmt: skip
