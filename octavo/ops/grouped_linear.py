"""Products of tokens with the weights of their experts, and the weighted sum of what a token's experts give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F

from octavo.ops.gated import clamped_swiglu, gelu_tanh_mul, silu_mul
from octavo.ops.route import Routes

Gates = dict[str, Callable[[torch.Tensor], torch.Tensor]]

GATES: Gates = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul, "clamped_swiglu": clamped_swiglu}


W = TypeVar("W", bound="OfExperts")
W_contra = TypeVar("W_contra", contravariant=True)


class OfExperts(Protocol):
    """Weights [experts, out, in], however they are stored."""

    def __getitem__(self: W, expert: int, /) -> W: ...


class GroupedLinearOp(Protocol[W_contra]):
    def __call__(self, x: torch.Tensor, weight: W_contra, bias: torch.Tensor | None, routes: Routes, gate: str) -> torch.Tensor:
        """gate(x W_e^T + b_e) for each pair of a token and one of its experts.

        x       [T, in]
        weight  [experts here, out, in], as `pack_grouped` laid it out
        bias    [experts here, out]
        gate    an activation's name: the first half of the result is its gate, the second what it multiplies
        ->      [T * per_token, out / 2]; what stands in the rows of pairs whose expert is elsewhere is not said
        """
        ...


class GroupedSumOp(Protocol[W_contra]):
    def __call__(
        self, x: torch.Tensor, weight: W_contra, bias: torch.Tensor | None, routes: Routes, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """residual + the sum over a token's experts here of their weight * (x W_e^T + b_e).

        x         [T * per_token, in], as a `GroupedLinearOp` gave it
        weight    [experts here, out, in], as `pack_grouped` laid it out
        bias      [experts here, out]
        residual  [T, out]; a twin may write the result over it
        ->        [T, out]
        """
        ...


@dataclass(frozen=True)
class ByExpert(Generic[W]):
    """Both operations from a product of plain rows, one expert after another. The host reads which experts are chosen."""

    rows: Callable[[torch.Tensor, W, torch.Tensor | None], torch.Tensor]  # x [n, in], weight, bias [out] -> [n, out]
    width: Callable[[W], int]  # out, of the weights as they are laid out

    def linear(self, x: torch.Tensor, weight: W, bias: torch.Tensor | None, routes: Routes, gate: str) -> torch.Tensor:
        per_token = routes.chosen.shape[1]
        out = x.new_zeros(routes.num_pairs, self.width(weight) // 2)
        for expert, pairs in _hit(routes):
            out[pairs] = GATES[gate](self.rows(x[pairs // per_token], weight[expert], None if bias is None else bias[expert]))
        return out

    def sum(
        self, x: torch.Tensor, weight: W, bias: torch.Tensor | None, routes: Routes, residual: torch.Tensor | None
    ) -> torch.Tensor:
        num_tokens, per_token = routes.chosen.shape
        out = torch.zeros(num_tokens, self.width(weight), dtype=torch.float32, device=x.device)
        for expert, pairs in _hit(routes):
            y = self.rows(x[pairs], weight[expert], None if bias is None else bias[expert])
            out.index_add_(0, pairs // per_token, y.float() * routes.weights.flatten()[pairs, None])
        return out.to(x.dtype) if residual is None else residual + out.to(x.dtype)


def _hit(routes: Routes) -> Iterator[tuple[int, torch.Tensor]]:
    """The experts here that some token goes to, each with its pairs."""
    chosen = routes.chosen.flatten()
    for expert in chosen.unique().tolist():
        if 0 <= expert < routes.num_experts:
            yield expert, (chosen == expert).nonzero()[:, 0]


_plain = ByExpert[torch.Tensor](F.linear, lambda weight: weight.shape[1])
grouped_linear: GroupedLinearOp[torch.Tensor] = _plain.linear
grouped_sum: GroupedSumOp[torch.Tensor] = _plain.sum


def share_out(routes: Routes) -> Routes:
    """The routes with what the products of the same set want to know of them. Called once a layer; the references want nothing."""
    return routes


def pack_grouped(weight: torch.Tensor) -> torch.Tensor:
    """Lay weights [experts, out, in] out as the products of the same set read them; the memory of the old may be written over."""
    return weight
