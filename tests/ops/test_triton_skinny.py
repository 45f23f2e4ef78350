"""The product for few rows with everything that may be fused around it, against float64; in Triton's interpreter where there is no GPU.

Tolerance: the relative error of one rounding of the result, and of one of x * norm before the product, in the dtype of x.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.triton.skinny import MAX_BLOCKS, Skinny, skinny

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DEPENDENT = GPU and torch.cuda.get_device_capability() >= (9, 0)
DTYPES = [torch.bfloat16, torch.float32] if GPU else [torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 8e-4, torch.float32: 1e-5}
EPS = 1e-5

CUTS = [
    pytest.param(1, 40, 96, Skinny(1, 8, 32), id="one row"),
    pytest.param(1, 36, 100, Skinny(1, 8, 32, stages=1, unroll=2), id="one row, ragged"),
    pytest.param(3, 44, 96, Skinny(16, 16, 32), id="few rows"),
    pytest.param(5, 40, 72, Skinny(16, 16, 32, swap=True), id="few rows, swapped and ragged"),
] + [
    pytest.param(1, 6144, 4096, Skinny(1, 4, 1024, stages=1, unroll=4), id="real, one row"),
    pytest.param(13, 6144, 4096, Skinny(16, 32, 128), id="real, few rows"),
    pytest.param(64, 6144, 4096, Skinny(64, 64, 64, swap=True), id="real, more rows"),
] * GPU


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def wanted(x, weight, bias, norm, gate, residual, scale):
    wide = x.double()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * norm.double()
    y = F.linear(wide, weight.double(), None if bias is None else bias.double())
    if gate is not None:
        first, up = y.chunk(2, dim=-1)
        y = up * (F.silu(first) if gate == "silu" else F.gelu(first, approximate="tanh"))
    return y if residual is None else residual.double() + scale * y


def assert_same(found: torch.Tensor, right: torch.Tensor) -> None:
    error = (found.double() - right).norm() / right.norm()
    assert error < TOLERANCE[found.dtype], error.item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("norm", "gate", "bias", "add"), [(0, None, 1, 0), (1, "silu", 0, 0), (1, "gelu_tanh", 1, 0), (1, None, 1, 1)])
@pytest.mark.parametrize(("rows", "n", "k", "cut"), CUTS)
def test_every_form(rows, n, k, cut, norm, gate, bias, add, dtype):
    x, weight = draw(rows, k + 16, dtype=dtype)[:, :k] * 2, draw(n, k, dtype=dtype) * k**-0.5
    around = draw(n, dtype=dtype) if bias else None, draw(k) if norm else None
    residual = draw(rows, n, dtype=dtype) if add else None
    right = wanted(x, weight, *around, gate, residual, 0.5)
    counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=DEVICE)
    found = skinny(x, weight, cut, counters, *around, EPS, gate, residual, 0.5, dependent=DEPENDENT)
    assert_same(found, right)
    assert residual is None or found is residual


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "split", "swap"), [(1, 3, False), (4, 2, False), (4, 3, True)])
def test_split_sums(rows, split, swap, dtype):
    """Twice, for the counters must be back at zero; bit for bit the same, for the order of the sum is fixed."""
    n, k = (4096, 14336) if GPU else (40, 176)
    cut = Skinny(1, 8, 32, split) if rows == 1 else Skinny(16, 16, 32, split, swap=swap)
    x, weight = draw(rows, k, dtype=dtype), draw(n, k, dtype=dtype) * k**-0.5
    bias, residual = draw(n, dtype=dtype), draw(rows, n, dtype=dtype)
    right = wanted(x, weight, bias, None, None, residual, 1.0)
    counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device=DEVICE)
    first, second = (skinny(x, weight, cut, counters, bias, residual=residual.clone(), dependent=DEPENDENT) for _ in range(2))
    assert_same(first, right)
    assert torch.equal(first, second)
    assert not counters.any()
