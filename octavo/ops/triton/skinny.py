"""The product with a weight matrix for few rows: bound by reading the weight, so everything beside it is fused around that one stream.

y = around(x W^T) for x [M, K], W [N, K] in at most a few dozen rows. Floor: 2 N K bytes (bf16) over the memory's rate; on an H200
(4.3 TB/s in practice) 55 us for 28672 x 4096, 27 for 4096 x 14336, 12 for 6144 x 4096, 8 for 4096 x 4096. Arithmetic is 2 M operations
a weight, far below the machine's balance up to 64 rows. What else a layer does between its products is a few kB a row, yet each of
those kernels costs a launch gap, a ramp and a tail; so this kernel also does, each where asked for:

- norm: x is the residual stream. x * w goes into the product, and the factor rsqrt(mean(x^2) + eps), one scalar a row, is applied to the
  result: the sum of squares is taken while streaming, without a second pass. x * w is rounded to x's dtype before tensor cores see it
  (not at all for one row); the unfused operation rounds after the factor, so the two differ by one rounding of the same relative size.
- gate: rows n and N / 2 + n of W are read by the same program, which writes activation(gate) * up.
- residual: y = residual + scale * product, written over the residual.
- bias.

A program holds BLOCK_N rows (of each half, with a gate) for 1 / SPLIT of K. With SPLIT > 1 partial sums go to a float32 workspace and
the program that counts itself last of its rows adds them in a fixed order, so results do not depend on who came last; it also puts the
counter back to 0. BLOCK_M = 1 multiplies and adds in float32 lanes, larger ones use tensor cores on rows padded to BLOCK_M.

With PDL (programmatic dependent launch, sm_90) a program starts while the kernel before it drains: it asks the L2 for the head of its
weights, which no kernel writes, and only then waits for that kernel's results.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.ops.table import Skinny

GATES = {None: 0, "silu": 1, "gelu_tanh": 2}
MAX_BLOCKS = 1 << 14  # counters of one workspace


@triton.jit
def _prefetch_l2(weight, rows, K: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr):
    """Ask the L2 for the first LINES lines of 128 bytes of these rows."""
    at = weight + rows.to(tl.int64)[:, None] * K + tl.arange(0, LINES)[None, :] * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // dummy $0", "=r,l", [at.to(tl.int64, bitcast=True)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _weights(weight, rows, k, K: tl.constexpr, EVEN: tl.constexpr):
    at = weight + rows.to(tl.int64)[:, None] * K + k[None, :]
    if EVEN:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def _accumulate(acc, x, w, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    if SWAP:
        acc = tl.dot(w, tl.trans(x), acc, input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    else:
        acc = tl.dot(x, tl.trans(w), acc, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    return acc


@triton.jit
def _row_product(
    x, weight, norm, rows, up_rows, first,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """For one row: products with `rows` and `up_rows` [1, BLOCK_N] and the sum of squares [1]."""
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    up = tl.zeros((BLOCK_N if GATE else 1, BLOCK_K), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for start in tl.range(0, PART, BLOCK_K, num_stages=STAGES, loop_unroll_factor=UNROLL):
        k = first + start + tl.arange(0, BLOCK_K)
        value = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value *= tl.load(norm + k, mask=k < K, other=0.0)
        acc += _weights(weight, rows, k, K, EVEN).to(tl.float32) * value[None, :]
        if GATE:
            up += _weights(weight, up_rows, k, K, EVEN).to(tl.float32) * value[None, :]
    return tl.sum(acc, axis=1)[None, :], tl.sum(up, axis=1)[None, :], tl.sum(squares, axis=0) + tl.zeros((1,), tl.float32)


@triton.jit
def _tile_product(
    x, weight, norm, rows, up_rows, m, M, x_stride, first,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, SWAP: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for BLOCK_M rows with tensor cores: [BLOCK_M, BLOCK_N] twice and [BLOCK_M]."""
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    x_rows = x + m.to(tl.int64)[:, None] * x_stride
    for start in tl.range(0, PART, BLOCK_K, num_stages=STAGES):
        k = first + start + tl.arange(0, BLOCK_K)
        value = tl.load(x_rows + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        if NORM:
            wide = value.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            value = (wide * tl.load(norm + k, mask=k < K, other=0.0)[None, :]).to(value.dtype)
        acc = _accumulate(acc, value, _weights(weight, rows, k, K, EVEN), SWAP, PRECISION)
        if GATE:
            up = _accumulate(up, value, _weights(weight, up_rows, k, K, EVEN), SWAP, PRECISION)
    if SWAP:
        acc = tl.trans(acc)
        up = tl.trans(up)
    return acc, up, squares


@triton.jit
def _finish(acc, up, bias, residual, y, n, m, M, N, scale, GATE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr):
    """Bias, gate, residual and the write of acc [BLOCK_M, BLOCK_N]; N outputs a row."""
    inside = (m < M)[:, None] & (n < N)[None, :]
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if GATE > 0:
        if BIAS:
            up += tl.load(bias + N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        if GATE == 1:
            acc = acc * tl.sigmoid(acc) * up
        else:
            inner = 0.7978845608028654 * (acc + 0.044715 * acc * acc * acc)
            acc = acc * tl.sigmoid(2.0 * inner) * up  # (1 + tanh(z)) / 2 = sigmoid(2 z)
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
    UNROLL: tl.constexpr, PDL: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    PART: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT) * BLOCK_K
    EVEN: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    block, part = tl.program_id(0), tl.program_id(1)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    rows = tl.minimum(n, N - 1)  # rows beyond the last repeat it, and are not written
    first = part * PART
    if PDL:
        gdc_launch_dependents()
        if LINES > 0:
            _prefetch_l2(weight + first, rows, K, LINES, LINE)
            if GATE > 0:
                _prefetch_l2(weight + first, N + rows, K, LINES, LINE)
        gdc_wait()
    if BLOCK_M == 1:
        acc, up, squares = _row_product(x, weight, norm, rows, N + rows, first, K, BLOCK_N, BLOCK_K, PART, EVEN, NORM, GATE, STAGES, UNROLL)
    else:
        acc, up, squares = _tile_product(
            x, weight, norm, rows, N + rows, m, M, x_stride, first,
            K, BLOCK_M, BLOCK_N, BLOCK_K, PART, EVEN, NORM, GATE, SWAP, STAGES, PRECISION,
        )  # fmt: skip
    if NORM:
        factor = tl.rsqrt(squares / K + eps)[:, None]
        acc *= factor
        up *= factor
    if SPLIT == 1:
        _finish(acc, up, bias, residual, y, n, m, M, N, scale, GATE, BIAS, ADD)
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
            _finish(total, total, bias, residual, y, n, m, M, N, scale, GATE, BIAS, ADD)


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
    line = 128 // dtype.itemsize
    wanted = min(config.prefetch, k // config.split) // line
    return {
        "K": k, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "SPLIT": config.split,
        "NORM": norm, "GATE": GATES[gate], "BIAS": bias, "ADD": add, "SWAP": config.swap, "STAGES": config.stages, "UNROLL": config.unroll,
        "PDL": dependent, "LINES": 1 << (wanted.bit_length() - 1) if wanted else 0, "LINE": line,
        "PRECISION": "ieee" if dtype is torch.float32 else "tf32",
    }  # fmt: skip
