"""Products of tokens with the weights of their experts: tiles of rows that go to one expert, or for very few tokens pair by pair.

Floor: the weights of all experts that any token goes to, once through memory. Of E experts with k a token, T tokens that choose evenly
hit E (1 - (1 - k / E)^T): for Qwen3-30B-A3B (128 experts of 9.4 MB a layer, 8 a token) 8 of one token, 52 of eight, all from 64 on. On an
H200 (4.24 TB/s) those are 18, 115 and 285 us a layer, or 0.9, 5.5 and 13.7 ms over 48 layers. Arithmetic, 75 MFLOP a token and layer, takes
as long from 2,900 tokens on (764 TFLOP/s); with 1,024 tokens it is 101 us, with 8,192 it is 810 us.

Three kernels, with their launches in a layer of few tokens (pair by pair) two, else three:

- `_tiles`: a tile's rows are gathered from x by the list of `share_out.py`, so nothing is copied in the order of experts. Each program
  makes BLOCK_N outputs of its tile; of a gate it reads both halves and writes their product. Programs of one tile lie side by side, so
  that tiles of the same expert find its weights in L2.
- `_pairs`: whole weight rows against one x in float32, nothing needs to be sorted.
- `_pair_sum`: the same for the second product, where a program goes through all experts of its token and adds up at once, with residual.
- `_sum`: the weighted sum after `_tiles`.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from octavo.ops.route import Routes
from octavo.ops.table import Grouped, form, grouped_cut, grouped_rows
from octavo.ops.triton.dependent import follow
from octavo.ops.triton.share_out import Tiles, share_out
from octavo.ops.triton.skinny import activated

GATES = {None: 0, "silu": 1, "gelu_tanh": 2, "clamped_swiglu": 3}
MAX_EXPERTS = 1 << 12  # counters of one workspace
_SUM_BLOCK = 1024


@triton.jit
def _gated(gate, up, GATE: tl.constexpr):
    if GATE == 3:
        gate = tl.minimum(gate, 7.0)
        return gate * tl.sigmoid(1.702 * gate) * (tl.clamp(up, -7.0, 7.0) + 1.0)
    else:
        return activated(gate, GATE) * up


@triton.jit
def _product(value, w, acc, SWAP: tl.constexpr, PRECISION: tl.constexpr):
    if SWAP:
        return tl.dot(w, tl.trans(value), acc, input_precision=PRECISION)
    else:
        return tl.dot(value, tl.trans(w), acc, input_precision=PRECISION)


@triton.jit
def write_tile(acc, up, bias, expert, y, pair, inside, n, at, N, GATE: tl.constexpr, BIAS: tl.constexpr, SWAP: tl.constexpr):
    """What a tile's products come to, with bias and gate, into the rows of y of its pairs that are inside; `at` is n, kept below N."""
    HALVES: tl.constexpr = 2 if GATE > 0 else 1
    if SWAP:
        acc, up = tl.trans(acc), tl.trans(up)
    if BIAS:
        acc += tl.load(bias + expert * (HALVES * N) + at).to(tl.float32)[None, :]
        if GATE > 0:
            up += tl.load(bias + expert * (HALVES * N) + N + at).to(tl.float32)[None, :]
    if GATE > 0:
        acc = _gated(acc, up, GATE)
    tl.store(y + pair.to(tl.int64)[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=inside[:, None] & (n < N)[None, :])


@triton.jit
def _tiles(
    x, weight, bias, records, order, y, N, x_stride,
    K: tl.constexpr, PER_ROW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATE: tl.constexpr, BIAS: tl.constexpr, SWAP: tl.constexpr, PDL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y [pairs, N]. Grid: (N / BLOCK_N, tiles). PER_ROW pairs share a row of x."""
    HALVES: tl.constexpr = 2 if GATE > 0 else 1
    EVEN: tl.constexpr = K % BLOCK_K == 0
    follow(PDL)
    record = records + tl.program_id(1) * 4
    rows = tl.load(record + 2)
    if rows == 0:
        return
    expert, first = tl.load(record).to(tl.int64), tl.load(record + 1)
    m = tl.arange(0, BLOCK_M)
    inside = m < rows
    pair = tl.load(order + first + m, mask=inside, other=0)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, N - 1)  # rows beyond the last repeat it, and are not written
    w_rows = weight + expert * (HALVES * N * K) + at.to(tl.int64)[:, None] * K
    x_rows = x + (pair // PER_ROW).to(tl.int64)[:, None] * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    up = acc
    for start in tl.range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if EVEN:
            value = tl.load(x_rows + k[None, :], mask=inside[:, None], other=0.0)
            w = tl.load(w_rows + k[None, :])
            acc = _product(value, w, acc, SWAP, PRECISION)
            if GATE > 0:
                up = _product(value, tl.load(w_rows + N * K + k[None, :]), up, SWAP, PRECISION)
        else:
            value = tl.load(x_rows + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_rows + k[None, :], mask=(k < K)[None, :], other=0.0)
            acc = _product(value, w, acc, SWAP, PRECISION)
            if GATE > 0:
                w = tl.load(w_rows + N * K + k[None, :], mask=(k < K)[None, :], other=0.0)
                up = _product(value, w, up, SWAP, PRECISION)
    write_tile(acc, up, bias, expert, y, pair, inside, n, at, N, GATE, BIAS, SWAP)


@triton.jit
def _pairs(
    x, weight, bias, chosen, y, N, x_stride, num_experts,
    K: tl.constexpr, PER_ROW: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y [pairs, N], gated. Grid: (N / BLOCK_N, pairs). BLOCK_K covers K."""
    follow(PDL)
    pair = tl.program_id(1).to(tl.int64)
    expert = tl.load(chosen + pair)
    if (expert < 0) | (expert >= num_experts):
        return
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, N - 1)
    k = tl.arange(0, BLOCK_K)
    w_rows = weight + expert.to(tl.int64) * (2 * N * K) + at.to(tl.int64)[:, None] * K + k[None, :]
    inside = (k < K)[None, :]
    w_gate = tl.load(w_rows, mask=inside, other=0.0, eviction_policy="evict_first")
    w_up = tl.load(w_rows + N * K, mask=inside, other=0.0, eviction_policy="evict_first")
    value = tl.load(x + pair // PER_ROW * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
    gate = tl.sum(w_gate.to(tl.float32) * value[None, :], axis=1)
    up = tl.sum(w_up.to(tl.float32) * value[None, :], axis=1)
    if BIAS:
        of_expert = bias + expert.to(tl.int64) * (2 * N) + at
        gate += tl.load(of_expert).to(tl.float32)
        up += tl.load(of_expert + N).to(tl.float32)
    tl.store(y + pair * N + n, _gated(gate, up, GATE).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _pair_sum(
    x, weight, bias, chosen, weights, residual, y, N, num_experts,
    K: tl.constexpr, PER_TOKEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """y [tokens, N] = residual + the weighted sum over each token's experts. Grid: (N / BLOCK_N, tokens). BLOCK_K covers K."""
    follow(PDL)
    token = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = tl.minimum(n, N - 1)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    if ADD:
        total += tl.load(residual + token * N + at).to(tl.float32)
    for j in tl.static_range(PER_TOKEN):
        pair = token * PER_TOKEN + j
        expert = tl.load(chosen + pair)
        here = (expert >= 0) & (expert < num_experts)
        expert = tl.where(here, expert, 0).to(tl.int64)
        factor = tl.where(here, tl.load(weights + pair), 0.0)
        value = tl.load(x + pair * K + k, mask=(k < K) & here, other=0.0).to(tl.float32) * factor
        inside = ((k < K) & here)[None, :]
        w = tl.load(weight + expert * (N * K) + at.to(tl.int64)[:, None] * K + k[None, :], mask=inside, other=0.0)
        acc += w.to(tl.float32) * value[None, :]
        if BIAS:
            total += factor * tl.load(bias + expert * N + at).to(tl.float32)
    tl.store(y + token * N + n, (total + tl.sum(acc, axis=1)).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _sum(
    rows, chosen, weights, residual, y, N, num_experts,
    PER_TOKEN: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y [tokens, N] = residual + the weighted sum of rows [pairs, N]. Grid: (tokens, N / BLOCK)."""
    follow(PDL)
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    if ADD:
        total += tl.load(residual + token * N + n, mask=n < N, other=0.0).to(tl.float32)
    for j in tl.static_range(PER_TOKEN):
        pair = token * PER_TOKEN + j
        expert = tl.load(chosen + pair)
        here = (expert >= 0) & (expert < num_experts)
        value = tl.load(rows + pair * N + n, mask=(n < N) & here, other=0.0).to(tl.float32)
        total += tl.load(weights + pair) * value
    tl.store(y + token * N + n, total.to(y.dtype.element_ty), mask=n < N)


class TritonGrouped:
    """Bound to a device. All its calls must run on one stream, for they share the counters."""

    def __init__(self, device: torch.device, name: str, dependent: bool) -> None:
        """`name` is the device's in the table; `dependent`: launch before the kernel ahead has ended (sm_90 and later)."""
        self.name, self.dependent = name, dependent
        self.counters = torch.zeros(MAX_EXPERTS, dtype=torch.int32, device=device)

    @staticmethod
    def here() -> TritonGrouped:
        """For the current GPU."""
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return TritonGrouped(torch.device("cuda"), about.name, about.major >= 9)

    def share_out(self, routes: Routes) -> Routes:
        """The routes with their tiles, unless tokens are so few that pairs are taken one by one."""
        num_tokens, per_token = routes.chosen.shape
        block_m = grouped_rows(self.name, num_tokens, per_token, routes.num_experts)
        return routes if block_m == 1 else replace(routes, work=share_out(routes, block_m, self.counters, self.dependent))

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, routes: Routes, gate: str) -> torch.Tensor:
        return grouped(x, weight, bias, routes, gate, self._cut(x, weight, routes, True), self.dependent)

    def sum(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, routes: Routes, residual: torch.Tensor | None
    ) -> torch.Tensor:
        cut = self._cut(x, weight, routes, False)
        if routes.work is None:
            return pair_sum(x, weight, bias, routes, residual, cut, self.dependent)
        rows = grouped(x, weight, bias, routes, None, cut, self.dependent)
        return weighted_sum(rows, routes, residual, self.dependent)

    def _cut(self, x: torch.Tensor, weight: torch.Tensor, routes: Routes, gate: bool) -> Grouped:
        block_m = 1 if routes.work is None else routes.work.block_m
        return grouped_cut(self.name, form(False, gate, False), block_m, weight.shape[1], weight.shape[2], x.element_size())


def grouped(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, routes: Routes, gate: str | None, cut: Grouped, dependent: bool
) -> torch.Tensor:
    """x [T, K] with a gate, else [pairs, K] -> [pairs, N], where N is half of the weight's rows with a gate.

    With `cut.block_m` 1 there must be a gate; else the routes hold tiles of as many rows.
    """
    n, k = weight.shape[1] // (2 if gate else 1), weight.shape[2]
    assert weight.is_contiguous()
    assert x.stride(1) == 1
    y = torch.empty((routes.num_pairs, n), dtype=x.dtype, device=x.device)
    per_row = routes.chosen.shape[1] if gate else 1
    fixed = {"K": k, "PER_ROW": per_row, "BLOCK_N": cut.block_n, "GATE": GATES[gate], "BIAS": bias is not None, "PDL": dependent}
    launch = {"launch_pdl": True} if dependent else {}
    blocks = triton.cdiv(n, cut.block_n)
    if cut.block_m == 1:
        assert gate is not None
        _pairs[(blocks, routes.num_pairs)](
            x, weight, bias, routes.chosen, y, n, x.stride(0), routes.num_experts, BLOCK_K=triton.next_power_of_2(k),
            num_warps=cut.warps, **fixed, **launch,
        )  # fmt: skip
        return y
    tiles: Tiles = routes.work
    assert tiles.block_m == cut.block_m
    _tiles[(blocks, tiles.records.numel() // 4)](
        x, weight, bias, tiles.records, tiles.order, y, n, x.stride(0), BLOCK_M=cut.block_m, BLOCK_K=cut.block_k, SWAP=cut.swap,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_warps=cut.warps, num_stages=cut.stages, **fixed, **launch,
    )  # fmt: skip
    return y


def pair_sum(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, routes: Routes, residual: torch.Tensor | None,
    cut: Grouped, dependent: bool,
) -> torch.Tensor:  # fmt: skip
    """x [pairs, K], weight [experts, N, K] -> [T, N]; the residual is written over."""
    (num_tokens, per_token), (_, n, k) = routes.chosen.shape, weight.shape
    y = torch.empty((num_tokens, n), dtype=x.dtype, device=x.device) if residual is None else residual
    assert y.is_contiguous()
    assert x.is_contiguous()
    launch = {"launch_pdl": True} if dependent else {}
    _pair_sum[(triton.cdiv(n, cut.block_n), num_tokens)](
        x, weight, bias, routes.chosen, routes.weights, residual, y, n, routes.num_experts, K=k, PER_TOKEN=per_token, BLOCK_N=cut.block_n,
        BLOCK_K=triton.next_power_of_2(k), BIAS=bias is not None, ADD=residual is not None, PDL=dependent, num_warps=cut.warps, **launch,
    )  # fmt: skip
    return y


def weighted_sum(rows: torch.Tensor, routes: Routes, residual: torch.Tensor | None, dependent: bool) -> torch.Tensor:
    """rows [pairs, N] -> [T, N]; the residual is written over."""
    (num_tokens, per_token), n = routes.chosen.shape, rows.shape[1]
    y = torch.empty((num_tokens, n), dtype=rows.dtype, device=rows.device) if residual is None else residual
    assert y.is_contiguous()
    launch = {"launch_pdl": True} if dependent else {}
    block = min(_SUM_BLOCK, triton.next_power_of_2(n))
    _sum[(num_tokens, triton.cdiv(n, block))](
        rows, routes.chosen, routes.weights, residual, y, n, routes.num_experts,
        PER_TOKEN=per_token, BLOCK=block, ADD=residual is not None, PDL=dependent, num_warps=4, **launch,
    )  # fmt: skip
    return y
