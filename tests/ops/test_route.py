"""The choice of experts against its definition, token by token; and a product with experts' weights against one pair at a time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from octavo.config.experts import Choice
from octavo.ops.grouped_linear import grouped_linear, grouped_sum
from octavo.ops.route import Routes, route
from octavo.ops.select import choose_ops

CHOICES = {
    "softmax": Choice(3),
    "softmax, summing to one": Choice(2, renormalize=True),
    "sigmoid, scaled": Choice(3, "sigmoid", renormalize=True, scale=2.5),
    "groups by their best": Choice(2, num_groups=4, groups_per_token=2),
    "groups by their two best": Choice(4, "sigmoid", renormalize=True, num_groups=3, groups_per_token=2, group_best=2),
}


def by_definition(logits: list[float], correction: list[float], choice: Choice) -> dict[int, float]:
    """Experts and weights of one token, in plain Python."""
    if choice.score == "sigmoid":
        scores = [1 / (1 + math.exp(-value)) for value in logits]
    else:
        total = sum(math.exp(value) for value in logits)
        scores = [math.exp(value) / total for value in logits]
    ranked = [score + more for score, more in zip(scores, correction)]
    each = len(logits) // choice.num_groups
    groups = [range(first, first + each) for first in range(0, len(logits), each)]
    worth = [sum(sorted((ranked[i] for i in group), reverse=True)[: choice.group_best]) for group in groups]
    best = sorted(range(len(groups)), key=lambda g: -worth[g])[: choice.groups_per_token]
    chosen = sorted((i for g in best for i in groups[g]), key=lambda i: -ranked[i])[: choice.per_token]
    total = sum(scores[i] for i in chosen) if choice.renormalize else 1.0
    return {i: scores[i] / total * choice.scale for i in chosen}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_each_token_gets_the_experts_of_the_definition(name: str, corrected: bool) -> None:
    torch.manual_seed(1)
    logits, correction = 2 * torch.randn(20, 12), torch.randn(12) * 0.3
    chosen, weights = route(logits, correction if corrected else None, CHOICES[name])
    assert chosen.dtype == torch.int32
    for row, experts, factors in zip(logits, chosen.tolist(), weights.tolist()):
        wanted = by_definition(row.tolist(), correction.tolist() if corrected else [0.0] * 12, CHOICES[name])
        assert dict(zip(experts, factors)) == pytest.approx(wanted, rel=1e-5)


def test_of_equal_scores_the_lower_number_wins() -> None:
    chosen, _ = route(torch.zeros(2, 6), None, Choice(3))
    assert chosen.tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("inner", [16, 10])
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "clamped_swiglu"])
def test_products_with_experts(gate: str, inner: int, level: int) -> None:
    """Experts that are elsewhere add nothing."""
    torch.manual_seed(2)
    ops = choose_ops("cpu", level)
    tokens, hidden, num, per_token = 9, 32, 5, 3
    x, residual = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    first, second = torch.randn(num, 2 * inner, hidden) / 4, torch.randn(num, hidden, inner) / 4
    biases = torch.randn(num, 2 * inner), torch.randn(num, hidden)
    chosen = torch.stack([torch.randperm(num + 3)[:per_token] - 2 for _ in range(tokens)]).int()
    routes = ops.share_out(Routes(chosen, torch.rand(tokens, per_token), num))
    wanted = residual.clone()
    for token in range(tokens):
        for e, weight in zip(chosen[token].tolist(), routes.weights[token]):
            if 0 <= e < num:
                g, u = F.linear(x[token], first[e], biases[0][e]).chunk(2)
                if gate == "clamped_swiglu":
                    g, u = g.clamp(max=7), u.clamp(-7, 7)
                    inside = g / (1 + torch.exp(-1.702 * g)) * (u + 1)
                else:
                    inside = (F.silu(g) if gate == "silu" else F.gelu(g, approximate="tanh")) * u
                wanted[token] += weight * F.linear(inside, second[e], biases[1][e])
    packed = ops.pack_grouped(first.clone()), ops.pack_grouped(second.clone())
    rows = ops.grouped_linear(x, packed[0], biases[0], routes, gate)
    torch.testing.assert_close(ops.grouped_sum(rows, packed[1], biases[1], routes, residual.clone()), wanted, atol=1e-4, rtol=1e-4)


def test_a_step_without_an_expert_here_gives_the_residual() -> None:
    routes = Routes(torch.full((3, 2), -1, dtype=torch.int32), torch.ones(3, 2), 4)
    rows = grouped_linear(torch.randn(3, 8), torch.randn(4, 12, 8), None, routes, "silu")
    residual = torch.randn(3, 8)
    assert torch.equal(grouped_sum(rows, torch.randn(4, 8, 6), None, routes, residual), residual)
    assert not grouped_sum(rows, torch.randn(4, 8, 6), None, routes, None).any()
