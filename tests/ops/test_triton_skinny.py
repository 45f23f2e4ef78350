"""The product for few rows with everything that may be fused around it, against float64; in Triton's interpreter where there is no GPU.

Tolerance: the relative error of one rounding of the result, and of one of x * norm before the product, in the dtype of x.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.linear import linear
from octavo.ops.table import BUCKETS, TUNED, OneRow, Skinny, form, product_cut
from octavo.ops.triton.linear import TritonLinear
from octavo.ops.triton.one_row import one_row
from octavo.ops.triton.skinny import MAX_BLOCKS, skinny

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
    return scale * y + (0 if residual is None else residual.double())


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
@pytest.mark.parametrize(("norm", "gate", "bias", "add"), [(0, None, 1, 0), (1, "silu", 0, 0), (1, "gelu_tanh", 1, 1), (0, None, 1, 1)])
@pytest.mark.parametrize(
    ("n", "k", "cut"),
    [
        pytest.param(40, 96, OneRow(8, 4), id="one group a program"),
        pytest.param(44, 100, OneRow(4, 4, per_sm=1), id="several groups a program, ragged"),
    ] + [pytest.param(6144, 4096, OneRow(4, 8, per_sm=2), id="real")] * GPU,
)  # fmt: skip
def test_one_row(n, k, cut, norm, gate, bias, add, dtype):
    x, weight = draw(1, k, dtype=dtype) * 2, draw(n, k, dtype=dtype) * k**-0.5
    around = draw(n, dtype=dtype) if bias else None, draw(k) if norm else None
    residual = draw(1, n // 2 if gate else n, dtype=dtype) if add else None
    right = wanted(x, weight, *around, gate, residual, 0.5)
    found = one_row(x, weight, cut, 3, *around, EPS, gate, residual, 0.5, dependent=DEPENDENT)
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


@pytest.mark.parametrize("rows", [0, 1, 7, 65])
@pytest.mark.parametrize(("norm", "gate", "bias", "add"), [(0, None, 0, 1), (1, "silu", 0, 0), (1, None, 1, 0), (0, "gelu_tanh", 0, 1)])
def test_any_number_of_rows(rows, norm, gate, bias, add):
    """Whichever way the table chooses, the result is the reference's within a few roundings."""
    n, k, dtype = 96, 128, DTYPES[0]
    op = TritonLinear(torch.device(DEVICE), "a card that nobody tuned", 2, DEPENDENT)
    x, weight = draw(rows, k, dtype=dtype), draw(n, k, dtype=dtype) * k**-0.5
    arguments = (draw(n, dtype=dtype) if bias else None, (draw(k), EPS) if norm else None, gate)
    residual = draw(rows, n // 2 if gate else n, dtype=dtype) if add else None
    right = linear(x, weight, *arguments, None if residual is None else residual.clone(), 0.5)
    found = op(x, weight, *arguments, residual, 0.5)
    limit = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(found, right, rtol=limit, atol=limit)


def test_every_tuned_cut_can_run():
    for device, tuned in TUNED.items():
        for (around, rows, n, k), cut in tuned.items():
            assert rows in BUCKETS
            assert around in {form(norm, gate, add) for norm in (0, 1) for gate in (0, 1) for add in (0, 1)}
            assert product_cut(device, around, rows, n, k, 132) == cut
            if isinstance(cut, OneRow):
                assert rows == 1
            elif isinstance(cut, Skinny):
                assert cut.block_m >= rows
                assert cut.split == 1 or around in ("linear", "linear+add")
                assert cut.split == 1 or -(-n // cut.block_n) <= MAX_BLOCKS


def test_shapes_that_nobody_tuned_have_a_cut_for_few_rows_only():
    assert product_cut("", "linear+add", 1, 576, 1536, 132).block_m == 1
    assert product_cut("", "linear+add", 9, 576, 1536, 132).split > 1
    assert product_cut("", "norm+linear", 9, 576, 1536, 132).split == 1
    assert product_cut("", "linear", 400, 576, 1536, 132) is None
    assert product_cut("", "linear", 1, 576, 1530, 132) is None
