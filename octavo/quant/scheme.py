"""How the weights of a linear layer, or the table of an embedding, are stored and used."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from octavo.ops.linear import Norm
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
