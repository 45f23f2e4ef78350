"""Layers in the order of Gemma 2 and 3."""

from __future__ import annotations

import torch

from octavo.config.architecture import Architecture, LayerConfig
from octavo.context import ForwardContext
from octavo.layers.layer import Layer
from octavo.models.dense import Attention, layer_mlp, layer_norm


class SandwichLayer(Layer):
    """Norms before and after both attention and MLP.

    x is what the layer before has computed and not yet added to `residual`: the next norm adds it, in one operation. Both [T, hidden];
    `residual` is None before the first layer.
    """

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(c)
        self.self_attn = Attention(c, layer)
        self.post_attention_layernorm = layer_norm(c)
        self.pre_feedforward_layernorm = layer_norm(c)
        self.mlp = layer_mlp(c)
        self.post_feedforward_layernorm = layer_norm(c)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ctx: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = self.input_layernorm.add(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, ctx))
        x, residual = self.pre_feedforward_layernorm.add(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x)), residual
