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
from octavo.layers.norm import RMSNorm, WidthNorm
from octavo.parallel.shard import Shard


class Attention(Layer):
    """x [T, hidden] -> [T, hidden], with a norm before and a residual after, as in `Linear`."""

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        shape = AttentionShape(c.heads, c.kv_heads, c.head_dim, c.attention_scale, layer.window, c.attention_softcap)
        parts = {"q_proj": c.q_dim, "k_proj": c.kv_dim, "v_proj": c.kv_dim}
        self.qkv_proj = Linear(c.hidden, parts, Shard.OUT, unit=c.head_dim, bias=c.qkv_bias)
        self.q_norm = self.k_norm = None
        if c.qk_norm is QkNorm.HEAD:
            self.q_norm, self.k_norm = (RMSNorm(c.head_dim, c.norm_eps, c.norm_offset) for _ in "qk")
        elif c.qk_norm is QkNorm.WIDTH:
            self.q_norm, self.k_norm = (WidthNorm(n, c.head_dim, c.norm_eps, c.norm_offset) for n in (c.q_dim, c.kv_dim))
        self.attn = PagedAttention(shape, layer.rope)
        self.o_proj = Linear(c.q_dim, c.hidden, Shard.IN, unit=c.head_dim, bias=c.o_bias, scale=c.residual_scale)

    def forward(
        self, x: torch.Tensor, ctx: ForwardContext, norm: RMSNorm | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        qkv = self.qkv_proj(x, norm)
        if isinstance(self.q_norm, WidthNorm) and isinstance(self.k_norm, WidthNorm):
            q, k, v = qkv.split(self.qkv_proj.shares, dim=1)
            attended = self.attn(torch.cat((self.q_norm(q), self.k_norm(k), v), dim=1), ctx)
        else:
            attended = self.attn(qkv, ctx, self.q_norm, self.k_norm)
        return self.o_proj(attended, residual=residual)


def layer_norm(c: Architecture) -> RMSNorm:
    return RMSNorm(c.hidden, c.norm_eps, c.norm_offset)


def layer_mlp(c: Architecture) -> Mlp:
    return Mlp(c.hidden, c.intermediate, c.activation, c.mlp_bias, c.residual_scale)


class PreNormLayer(Layer):
    """Norms before attention and before the MLP.

    x [T, hidden] is the residual stream: the first product of each half norms it, the last adds to it. Nothing is left for the next
    layer to add, so `residual` stays None.
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
        x = self.self_attn(x, ctx, self.input_layernorm, x)
        return self.mlp(x, self.post_attention_layernorm, x), None


class PostNormLayer(Layer):
    """Norms after attention and after the MLP; x and residual as in `PreNormLayer`."""

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
