"""Layers whose MLP may be a mixture of experts, in the order of Llama."""

from __future__ import annotations

import torch

from octavo.config.architecture import Architecture, LayerConfig
from octavo.context import ForwardContext
from octavo.layers.env import Env
from octavo.layers.experts import ExpertsMlp, Names
from octavo.layers.layer import Layer, Weight, parameter
from octavo.layers.norm import RMSNorm
from octavo.models.dense import Attention, layer_mlp, layer_norm
from octavo.parallel.shard import Extent


class MoeLayer(Layer):
    """Norms before attention and before experts or MLP; x and residual as in `PreNormLayer`. How a family names its parts is data."""

    names = Names()
    mlp_name = "mlp"

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__()
        self.input_layernorm = layer_norm(c)
        self.self_attn = self.attention(c, layer)
        self.post_attention_layernorm = layer_norm(c)
        mlp = layer_mlp(c) if layer.experts is None else ExpertsMlp(c.hidden, layer.experts, c.activation, self.names)
        setattr(self, self.mlp_name, mlp)

    def attention(self, c: Architecture, layer: LayerConfig) -> Layer:
        return Attention(c, layer)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, ctx: ForwardContext
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.self_attn(x, ctx, self.input_layernorm, x)
        return getattr(self, self.mlp_name)(x, self.post_attention_layernorm, x), None


class SinkAttention(Attention):
    """With a learned score for each head that takes its part of the weight and has no value."""

    def __init__(self, c: Architecture, layer: LayerConfig) -> None:
        super().__init__(c, layer)
        self.heads = Extent(c.heads, name="heads")

    def bind(self, path: str, env: Env) -> None:
        self.path, self.group = path, env.mesh.tp
        self.sinks = parameter((self.heads.share(self.group)[1],), torch.float32, env.device)

    def weights(self) -> list[Weight]:
        name, (first, here) = f"{self.path}.sinks", self.heads.share(self.group)
        return [Weight(name, (self.heads.size,), frozenset({name}), lambda t: self.sinks.data.copy_(t[first : first + here]))]

    def forward(
        self, x: torch.Tensor, ctx: ForwardContext, norm: RMSNorm | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.o_proj(self.attn(self.qkv_proj(x, norm), ctx, sinks=self.sinks), residual=residual)


class GptOssLayer(MoeLayer):
    names = Names(router="router", transposed=True)

    def attention(self, c: Architecture, layer: LayerConfig) -> Layer:
        return SinkAttention(c, layer)


class QwenMoeLayer(MoeLayer):
    names = Names(shared="shared_expert")


class MixtralLayer(MoeLayer):
    names = Names(gate="w1", up="w3", down="w2")
    mlp_name = "block_sparse_moe"
