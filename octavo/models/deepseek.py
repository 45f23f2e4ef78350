"""Layers in the order of Llama with multi-head latent attention, and experts or an MLP (DeepSeek-V2 and V3)."""

from __future__ import annotations

import torch

from octavo.config.architecture import Architecture, LayerConfig
from octavo.context import ForwardContext
from octavo.layers.latent import Expansion, LatentAttention
from octavo.layers.layer import Layer
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.models.moe import MoeLayer
from octavo.parallel.shard import Shard

INNER_EPS = 1e-6  # of the norms inside attention, whatever the config says of the others


class LatentSelfAttention(Layer):
    """x [T, hidden] -> [T, hidden], with a norm before and a residual after, as in `Linear`."""

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        assert c.latent is not None
        assert layer.rope is not None
        self.latent, self.head_dim = c.latent, c.head_dim
        kept = {"kv_a_proj_with_mqa": c.latent.width}
        if c.latent.q_rank is None:
            self.q_proj = Linear(c.hidden, c.q_dim, Shard.OUT, unit=c.head_dim)
            self.kv_a_proj = Linear(c.hidden, kept, bias=c.qkv_bias)
        else:
            self.qkv_a_proj = Linear(c.hidden, {"q_a_proj": c.latent.q_rank, **kept}, bias=c.qkv_bias)
            self.q_a_layernorm = RMSNorm(c.latent.q_rank, INNER_EPS)
            self.q_b_proj = Linear(c.latent.q_rank, c.q_dim, Shard.OUT, unit=c.head_dim)
        self.kv_a_layernorm = RMSNorm(c.latent.rank, INNER_EPS)
        self.kv_b_proj = Expansion(c.heads, c.latent)
        self.attn = LatentAttention(c.heads, c.latent, c.attention_scale, layer.rope)
        self.o_proj = Linear(c.heads * c.latent.value, c.hidden, Shard.IN, unit=c.latent.value, bias=c.o_bias)

    def forward(
        self, x: torch.Tensor, ctx: ForwardContext, norm: RMSNorm | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.latent.q_rank is None:
            q, kept = self.q_proj(x, norm), self.kv_a_proj(x, norm)
        else:
            narrow, kept = self.qkv_a_proj(x, norm).split([self.latent.q_rank, self.latent.width], dim=1)
            q = self.q_b_proj(narrow.contiguous(), self.q_a_layernorm)
        q = q.unflatten(1, (-1, self.head_dim))  # [T, heads here, plain + rotated]
        attended = self.attn(q, kept, self.kv_b_proj, self.kv_a_layernorm, ctx)
        return self.o_proj(self.kv_b_proj.back(attended), residual=residual)


class DeepseekLayer(MoeLayer):
    def attention(self, c: Architecture, layer: LayerConfig) -> Layer:
        return LatentSelfAttention(c, layer)
