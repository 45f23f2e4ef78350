"""Transformer layers in the order of Llama and its relatives, and in that of OLMo 2. Everything else about them is data."""

from __future__ import annotations

import torch

from octavo.attention.backend import AttentionShape
from octavo.config.architecture import Architecture, LayerConfig
from octavo.config.families import QkNorm
from octavo.context import ForwardContext
from octavo.layers.attention import PagedAttention
from octavo.layers.layer import Layer
from octavo.layers.linear import Linear
from octavo.layers.mlp import Mlp
from octavo.layers.norm import RMSNorm
from octavo.parallel.shard import Shard


class Attention(Layer):
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        shape = AttentionShape(c.heads, c.kv_heads, c.head_dim, c.attention_scale, layer.window, c.attention_softcap)
        parts = {"q_proj": c.q_dim, "k_proj": c.kv_dim, "v_proj": c.kv_dim}
        self.qkv_proj = Linear(c.hidden, parts, Shard.OUT, unit=c.head_dim, bias=c.qkv_bias)
        self.q_norm = self.k_norm = None
        if c.qk_norm is not None:
            whole = c.qk_norm is QkNorm.WIDTH
            self.q_norm = RMSNorm(c.q_dim if whole else c.head_dim, c.norm_eps, c.norm_offset)
            self.k_norm = RMSNorm(c.kv_dim if whole else c.head_dim, c.norm_eps, c.norm_offset)
        self.attn = PagedAttention(shape, layer.rope)
        self.o_proj = Linear(c.q_dim, c.hidden, Shard.IN, unit=c.head_dim, bias=c.o_bias)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.o_proj(self.attn(self.qkv_proj(x), ctx, self.q_norm, self.k_norm))


def layer_norm(c: Architecture) -> RMSNorm:
    return RMSNorm(c.hidden, c.norm_eps, c.norm_offset, c.residual_scale)


def layer_mlp(c: Architecture) -> Mlp:
    return Mlp(c.hidden, c.intermediate, c.activation, c.mlp_bias)


class PreNormLayer(Layer):
    """Norms before attention and before the MLP.

    x is what the layer before has computed and not yet added to `residual`: the next norm adds it, in one operation. Both [T, hidden];
    `residual` is None before the first layer.
    """

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(c)
        self.self_attn = Attention(c, layer)
        self.post_attention_layernorm = layer_norm(c)
        self.mlp = layer_mlp(c)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ctx: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, residual = self.input_layernorm.add(x, residual)
        x, residual = self.post_attention_layernorm.add(self.self_attn(x, ctx), residual)
        return self.mlp(x), residual


class PostNormLayer(Layer):
    """Norms after attention and after the MLP, so nothing is left to add: x is the residual stream itself and `residual` stays None."""

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.post_attention_layernorm = layer_norm(c)
        self.mlp = layer_mlp(c)
        self.post_feedforward_layernorm = layer_norm(c)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ctx: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = x + self.post_attention_layernorm(self.self_attn(x, ctx))
        return x + self.post_feedforward_layernorm(self.mlp(x)), None
