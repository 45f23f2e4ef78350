"""How the weights of a linear layer, or the table of an embedding, are stored and used."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from octavo.ops.linear import Norm
from octavo.ops.route import Routes
from octavo.parallel.shard import ParamSpec


class Scheme(Protocol):
    def params(self, in_features: int, out_features: int, dtype: torch.dtype) -> dict[str, ParamSpec]:
        """The parameters of a whole layer by the last part of their checkpoint names; `dtype` is that of the activations."""
        ...

    def finish(self, layer: Any) -> None:
        """Once, when all parameters of the layer are loaded: lay them out as `apply` wants them."""
        ...

    def apply(self, layer: Any, x: torch.Tensor, norm: Norm | None, gate: str | None, residual: torch.Tensor | None) -> torch.Tensor:
        """The layer's product with its bias, times `layer.scale`, and around it what `LinearOp` says: x [T, in here] -> [T, out here]."""
        ...

    def rows(self, layer: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """The layer as an embedding whose rows here are those from `first` on: tokens [T] -> [T, in], zeros for rows that are elsewhere.

        The layer was finished if a head multiplies with the same table, and else not.
        """
        ...


@runtime_checkable
class GroupedScheme(Protocol):
    """A scheme that can also store the weights of many experts: each parameter that `params` names has the experts as its first axis."""

    def params(self, in_features: int, out_features: int, dtype: torch.dtype) -> dict[str, ParamSpec]:
        """The parameters of one expert, as of a linear layer."""
        ...

    def finish_grouped(self, layer: Any) -> None:
        """Once, when all parameters of all experts are loaded."""
        ...

    def grouped_linear(self, layer: Any, x: torch.Tensor, routes: Routes, gate: str) -> torch.Tensor:
        """The product of each pair with the layer's weights and its gate, as `GroupedLinearOp`."""
        ...

    def grouped_sum(self, layer: Any, x: torch.Tensor, routes: Routes, residual: torch.Tensor | None) -> torch.Tensor:
        """The weighted sum over each token's experts, as `GroupedSumOp`."""
        ...
