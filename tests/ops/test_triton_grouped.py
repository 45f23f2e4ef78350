"""Experts' kernels against the torch references; in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.config.experts import Choice
from octavo.ops import route as reference
from octavo.ops.grouped_linear import grouped_linear, grouped_sum
from octavo.ops.route import Routes
from octavo.ops.table import Grouped
from octavo.ops.triton import share_out as sharing
from octavo.ops.triton.grouped import MAX_EXPERTS, TritonGrouped
from octavo.ops.triton.route import route
from octavo.ops.triton.share_out import most_tiles, share_out
from tests.interpreter import interpret
from tests.ops.test_route import CHOICES

interpret()
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DEPENDENT = GPU and torch.cuda.get_device_capability() >= (9, 0)
DTYPES = [torch.bfloat16, torch.float32] if GPU else [torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}


def counters() -> torch.Tensor:
    return torch.zeros(MAX_EXPERTS, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    ("num_experts", "choice"),
    [(12, choice) for choice in CHOICES.values()]
    + [(128, Choice(8, renormalize=True)), (20, Choice(6, num_groups=5, groups_per_token=3, scale=16.0))]
    + [(256, Choice(8, "sigmoid", True, 2.5, 8, 4, 2))],
)
def test_the_choice_is_that_of_the_reference(num_experts: int, choice: Choice, corrected: bool) -> None:
    torch.manual_seed(num_experts)
    logits = torch.randn(7, num_experts + 3, device=DEVICE)[:, :num_experts] * 2
    correction = torch.randn(num_experts, device=DEVICE) * 0.3 if corrected else None
    totals = torch.arange(num_experts, device=DEVICE)
    chosen, weights = route(logits, correction, choice, totals, DEPENDENT)
    wanted, factors = reference.route(logits, correction, choice)
    assert torch.equal(chosen.sort().values, wanted.sort().values)
    assert torch.equal(totals, torch.arange(num_experts, device=DEVICE) + chosen.flatten().bincount(minlength=num_experts))
    torch.testing.assert_close(weights.sort().values, factors.sort().values, atol=1e-6, rtol=1e-5)
    at = {(t, e): w for t, row in enumerate(wanted.tolist()) for e, w in zip(row, factors[t].tolist())}
    for token, row in enumerate(chosen.tolist()):
        assert weights[token].tolist() == pytest.approx([at[token, e] for e in row], rel=1e-4)


def test_of_equal_scores_the_lower_number_wins() -> None:
    totals = torch.zeros(6, dtype=torch.int64, device=DEVICE)
    chosen, _ = route(torch.zeros(700, 6, device=DEVICE), None, Choice(3), totals, DEPENDENT)
    assert chosen.unique(dim=0).tolist() == [[0, 1, 2]]
    assert totals.tolist() == [700, 700, 700, 0, 0, 0]


@pytest.mark.parametrize("at_once", [4096, 8])
@pytest.mark.parametrize(
    ("num_tokens", "per_token", "num_experts", "block_m"), [(1, 2, 3, 16), (9, 3, 5, 4), (40, 2, 7, 16), (33, 4, 4, 16)]
)
def test_every_pair_here_is_in_one_tile_of_its_expert(num_tokens, per_token, num_experts, block_m, at_once, monkeypatch) -> None:
    monkeypatch.setattr(sharing, "AT_ONCE", at_once)
    monkeypatch.setattr(sharing, "CHUNK", 16)
    torch.manual_seed(num_tokens)
    chosen = torch.randint(-1, num_experts + 1, (num_tokens, per_token), dtype=torch.int32, device=DEVICE)
    if num_tokens == 33:
        chosen.fill_(2)  # all to one
    used = counters()
    for _ in range(2):
        tiles = share_out(Routes(chosen, torch.ones(num_tokens, per_token), num_experts), block_m, used, DEPENDENT)
        assert not used.any()
        order, seen = tiles.order.tolist(), []
        assert tiles.records.numel() == 4 * most_tiles(num_tokens * per_token, num_experts, block_m)
        for expert, first, rows, _ in tiles.records.view(-1, 4).tolist():
            assert 0 <= rows <= block_m
            mine = order[first : first + rows]
            assert all(chosen.flatten()[pair] == expert for pair in mine)
            seen += mine
        assert sorted(seen) == [i for i, e in enumerate(chosen.flatten().tolist()) if 0 <= e < num_experts]


CUTS = [
    pytest.param(2, 24, 40, 4, Grouped(1, 8), Grouped(1, 16), id="pair by pair"),
    pytest.param(9, 24, 40, 3, Grouped(16, 16, 32), Grouped(16, 32, 16), id="tiles, ragged"),
    pytest.param(7, 16, 32, 3, Grouped(16, 16, 16, swap=True), Grouped(16, 16, 16, swap=True), id="swapped"),
] + [
    pytest.param(2, 768, 2048, 128, Grouped(1, 4, warps=8), Grouped(1, 8), id="real, pair by pair"),
    pytest.param(64, 768, 2048, 128, Grouped(16, 64, 128, 4, 4, True), Grouped(16, 64, 128, 4, 4, True), id="real, few"),
    pytest.param(700, 768, 2048, 128, Grouped(64, 64, 64, 4, 4), Grouped(64, 128, 64, 4, 4), id="real, many"),
    pytest.param(4096, 768, 2048, 128, Grouped(128, 64, 64, 8, 4), Grouped(128, 128, 64, 8, 4), id="real, tiles of 128"),
] * GPU


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("gate", "biased"), [("silu", False), ("gelu_tanh", True), ("clamped_swiglu", True)])
@pytest.mark.parametrize(("num_tokens", "inner", "hidden", "num_experts", "first", "second"), CUTS)
def test_products(num_tokens, inner, hidden, num_experts, first, second, gate, biased, dtype, monkeypatch) -> None:
    if dtype is torch.float32 and GPU and first.block_m > 1 and num_experts == 128:
        pytest.skip("these cuts are for operands of two bytes")
    torch.manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, device=DEVICE)

    x = draw(num_tokens, hidden + 8).to(dtype)[:, :hidden]
    weights = draw(num_experts, 2 * inner, hidden).to(dtype) * hidden**-0.5, draw(num_experts, hidden, inner).to(dtype) * inner**-0.5
    biases = (draw(num_experts, 2 * inner).to(dtype), draw(num_experts, hidden).to(dtype)) if biased else (None, None)
    residual = draw(num_tokens, hidden).to(dtype)
    chosen = torch.stack([torch.randperm(num_experts + 4)[:3] - 2 for _ in range(num_tokens)]).int().to(DEVICE)
    routes = Routes(chosen, torch.rand(num_tokens, 3, device=DEVICE), num_experts)
    wide = [None if t is None else t.double() for t in (x, *weights, *biases, residual)]
    rows = grouped_linear(wide[0], wide[1], wide[3], routes, gate)
    wanted = grouped_sum(rows, wide[2], wide[4], routes, wide[5])

    op = TritonGrouped(torch.device(DEVICE), "none", DEPENDENT)
    monkeypatch.setattr("octavo.ops.triton.grouped.grouped_rows", lambda *_: first.block_m)
    monkeypatch.setattr("octavo.ops.triton.grouped.grouped_cut", lambda name, form, *_: first if "gate" in form else second)
    shared = op.share_out(routes)
    inside = op.linear(x, weights[0], biases[0], shared, gate)
    here = ((chosen >= 0) & (chosen < num_experts)).flatten()
    assert ((inside.double() - rows)[here].norm() / rows[here].norm()) < TOLERANCE[dtype]
    before = residual.clone()
    found = op.sum(inside, weights[1], biases[1], shared, before)
    assert ((found.double() - wanted).norm() / wanted.norm()) < 2 * TOLERANCE[dtype]
    assert found is before
    alone = op.sum(inside, weights[1], biases[1], shared, None)
    loose = 1e-5 if dtype is torch.float32 else 0.05  # the two round in different places
    torch.testing.assert_close(alone.double() + residual.double(), found.double(), atol=loose, rtol=0.02)


def test_the_untuned_cuts_serve_any_number_of_tokens() -> None:
    op = TritonGrouped(torch.device(DEVICE), "none", DEPENDENT)
    first, second = torch.randn(6, 32, 48, device=DEVICE), torch.randn(6, 48, 16, device=DEVICE)
    for num_tokens in (1, 20):
        x = torch.randn(num_tokens, 48, device=DEVICE)
        routes = Routes(*route(torch.randn(num_tokens, 6, device=DEVICE), None, Choice(2, renormalize=True)), 6)
        shared = op.share_out(routes)
        found = op.sum(op.linear(x, first, None, shared, "silu"), second, None, shared, None)
        wanted = grouped_sum(grouped_linear(x, first, None, routes, "silu"), second, None, routes, None)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
