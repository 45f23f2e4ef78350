"""The product with a weight matrix for some hundred rows: too many to be bound by the weight alone, too few to hide a launch.

y = residual + scale * gate(x W^T), where all but the product may be left out. For x [M, K], W [N, K]: 2 M N K operations, 2 N K bytes of W.
At 256 rows a layer of Qwen3-0.6B is 8 GFLOP and 31 MB: 11 us and 7 us. A library's kernels take 28 us, and wait for one another to be gone;
this one is launched while the one ahead still runs (sm_90), and applies the gate to what it has.

Tiles come by descriptors: the copy engine fills shared memory, and no thread computes addresses.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo.ops.table import Wide
from octavo.ops.triton.dependent import follow
from octavo.ops.triton.skinny import GATES, activated


@triton.jit(do_not_specialize=["M"])
def _wide(
    x, weight, residual, y, M, N, scale,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x, weight: descriptors of tiles [BLOCK_M, BLOCK_K] and [BLOCK_N, BLOCK_K]. N: outputs a row. Grid: (tiles of N, tiles of M)."""
    follow(PDL)
    first_n, first_m = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_M
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        tile = x.load([first_m, k])
        acc = tl.dot(tile, tl.trans(weight.load([first_n, k])), acc)
        if GATE > 0:
            up = tl.dot(tile, tl.trans(weight.load([N + first_n, k])), up)
    if GATE > 0:
        acc = activated(acc, GATE) * up
    m, n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    inside = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    acc *= scale
    if ADD:
        acc += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=inside)


def wide(
    x: torch.Tensor, weight: torch.Tensor, cut: Wide, gate: str | None = None, residual: torch.Tensor | None = None, scale: float = 1.0,
    dependent: bool = False,
) -> torch.Tensor:  # fmt: skip
    """x [M, K], weight [N, K] -> [M, N], or [M, N / 2] with a gate; with a residual that tensor, written over.

    dependent  launch programmatically: before the kernel ahead on the stream has ended (sm_90 and later)
    """
    (num_rows, k), n = x.shape, weight.shape[0] // 2 if gate else weight.shape[0]
    y = torch.empty((num_rows, n), dtype=x.dtype, device=x.device) if residual is None else residual
    _wide[(triton.cdiv(n, cut.block_n), triton.cdiv(num_rows, cut.block_m))](
        TensorDescriptor.from_tensor(x, [cut.block_m, cut.block_k]), TensorDescriptor.from_tensor(weight, [cut.block_n, cut.block_k]),
        residual, y, num_rows, n, scale, K=k, BLOCK_M=cut.block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, GATE=GATES[gate],
        ADD=residual is not None, num_warps=cut.warps, num_stages=cut.stages, PDL=dependent, **({"launch_pdl": True} if dependent else {}),
    )  # fmt: skip
    return y
