"""The gated MLP."""

from __future__ import annotations

import torch

from octavo.layers.layer import Layer
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.parallel.shard import Shard


class Mlp(Layer):
    """scale * down(activation(gate(x)) * up(x)); x [T, hidden] -> [T, hidden]. With a norm before and a residual after, as in `Linear`."""

    def __init__(self, hidden: int, intermediate: int, activation: str, bias: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up_proj = Linear(hidden, {"gate_proj": intermediate, "up_proj": intermediate}, Shard.OUT, bias=bias)
        self.down_proj = Linear(intermediate, hidden, Shard.IN, bias=bias, scale=scale)

    def forward(self, x: torch.Tensor, norm: RMSNorm | None = None, residual: torch.Tensor | None = None) -> torch.Tensor:
        return self.down_proj(self.gate_up_proj(x, norm, self.activation), residual=residual)
