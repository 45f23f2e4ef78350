"""Products with experts in MXFP4 on a GPU (or Triton's interpreter) against the reference in float64; the format by its own table."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.mxfp4 import VALUES, Mxfp4, halves, mxfp4_linear, mxfp4_sum, rearranged
from octavo.ops.route import Routes
from octavo.ops.table import Grouped
from octavo.ops.triton import grouped_mxfp4
from octavo.ops.triton.grouped import TritonGrouped
from octavo.ops.triton.grouped_mxfp4 import TritonMxfp4
from tests.ops.test_triton_grouped import DEPENDENT, DEVICE, DTYPES, GPU, TOLERANCE


def drawn(num: int, out: int, inside: int) -> Mxfp4:
    codes = torch.randint(0, 256, (num, out, inside // 32, 16), dtype=torch.uint8, device=DEVICE)
    return Mxfp4(codes, torch.randint(119, 124, (num, out, inside // 32), dtype=torch.uint8, device=DEVICE))


def test_the_numbers_are_those_of_the_table_in_the_order_of_the_file() -> None:
    blocks = torch.tensor([[low | (low + 1) % 16 << 4 for low in range(16)]], dtype=torch.uint8)  # [1 group, 16]
    wanted = [VALUES[code] for low in range(16) for code in (low, (low + 1) % 16)]
    assert halves(blocks).flatten().tolist() == [code for low in range(16) for code in (low, (low + 1) % 16)]
    for power, factor in ((127, 1.0), (130, 8.0), (120, 2.0**-7)):
        weight = Mxfp4(rearranged(blocks), torch.tensor([power], dtype=torch.uint8))
        assert weight.wide(torch.float32).tolist() == [value * factor for value in wanted]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("gate", "biased"), [("silu", False), ("clamped_swiglu", True)])
@pytest.mark.parametrize(
    ("num_tokens", "inner", "hidden", "num"),
    [(2, 32, 160, 3), (2, 64, 32, 5), (7, 32, 160, 3), (70, 32, 64, 2)] + [(n, 2880, 2880, 32) for n in (1, 64, 400, 3000)] * GPU,
)
def test_products(num_tokens, inner, hidden, num, gate, biased, dtype, monkeypatch) -> None:
    """Pair by pair, and in tiles of 16 and of 64 rows."""
    torch.manual_seed(3)
    if num_tokens == 2:  # several stretches of a row
        monkeypatch.setattr(grouped_mxfp4, "cut_for", lambda block_m, gate: Grouped(1, 16, 64))
    x, residual = (torch.randn(num_tokens, hidden, device=DEVICE).to(dtype) for _ in range(2))
    first, second = drawn(num, 2 * inner, hidden), drawn(num, hidden, inner)
    biases = [torch.randn(num, out, device=DEVICE).to(dtype) if biased else None for out in (2 * inner, hidden)]
    chosen = torch.stack([torch.randperm(num + 2)[:2] - 1 for _ in range(num_tokens)]).int().to(DEVICE)
    routes = Routes(chosen, torch.rand(num_tokens, 2, device=DEVICE), num)
    wide = [None if t is None else t.double() for t in (x, *biases, residual)]
    rows = mxfp4_linear(wide[0], first, wide[1], routes, gate)
    wanted = mxfp4_sum(rows, second, wide[2], routes, wide[3])
    plain = TritonGrouped(torch.device(DEVICE), "none", DEPENDENT)
    op, shared = TritonMxfp4(plain), plain.share_out(routes)
    inside = op.linear(x, first, biases[0], shared, gate)
    here = ((chosen >= 0) & (chosen < num)).flatten()
    assert ((inside.double() - rows)[here].norm() / rows[here].norm()) < TOLERANCE[dtype]
    found = op.sum(inside, second, biases[1], shared, residual.clone())
    assert ((found.double() - wanted).norm() / wanted.norm()) < 2 * TOLERANCE[dtype]
