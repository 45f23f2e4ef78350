"""The gated MLP."""

from __future__ import annotations

import torch

from octavo.layers.env import Env
from octavo.layers.layer import Layer
from octavo.layers.linear import Linear
from octavo.parallel.shard import Shard


class Mlp(Layer):
    """down(activation(gate(x)) * up(x)); x [T, hidden] -> [T, hidden]."""

    def __init__(self, hidden: int, intermediate: int, activation: str, bias: bool) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up_proj = Linear(hidden, {"gate_proj": intermediate, "up_proj": intermediate}, Shard.OUT, bias=bias)
        self.down_proj = Linear(intermediate, hidden, Shard.IN, bias=bias)

    def bind(self, path: str, env: Env) -> None:
        self.gate = env.ops.gate(self.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gate(self.gate_up_proj(x)))
