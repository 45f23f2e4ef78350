"""Attention over the paged memory of one layer."""

from __future__ import annotations

import dataclasses

import torch

from octavo.attention.backend import AttentionShape
from octavo.config.rope import Rope
from octavo.context import ForwardContext
from octavo.core.kv.specs import PagedSpec, WindowSpec
from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight
from octavo.layers.norm import RMSNorm
from octavo.ops.kv_format import FP8
from octavo.parallel.shard import Extent


class PagedAttention(Layer):
    """Packed q, k, v of the batch's tokens -> [T, heads * head_dim], over all of each context.

    `kv` and `group` are set before the first forward, when memory exists: `kv` is this layer's view of it,
    [num_blocks, 2, block_tokens, kv_heads, head_dim], and `group` the KV group whose block table and slots it goes by. `kv_scales` go
    with the KV format (octavo.ops.kv_format): of fp8 they are 1 where a checkpoint brings none, those of int8 come with `kv`.
    """

    kv: torch.Tensor
    kv_scales: torch.Tensor | None = None
    group: int

    def __init__(self, shape: AttentionShape, rope: Rope | None) -> None:
        super().__init__()
        self.shape, self.rope = shape, rope

    def bind(self, path: str, env: Env) -> None:
        heads = Extent(self.shape.heads, name="heads").share(env.mesh.tp)[1]
        kv_heads = Extent(self.shape.kv_heads, name="kv heads").share(env.mesh.tp)[1]
        self.shape = dataclasses.replace(self.shape, heads=heads, kv_heads=kv_heads)
        self.ops, self.backend, self.kv_dtype = env.ops, env.attention, env.kv_dtype
        self.path = path
        if self.kv_dtype in FP8:
            self.kv_scales = torch.ones(2, dtype=torch.float32, device=env.device)
        self.cos_sin = None if self.rope is None else env.rope_table(self.rope)

    def weights(self) -> list[Weight]:
        """The scales of an fp8 KV cache, under either name that checkpoints use."""
        if self.kv_dtype not in FP8 or self.kv_scales is None:
            return []
        place = self.path.rpartition(".")[0]
        return [
            Weight(name, (), frozenset({f"{place}.{half}_scale"}), target.copy_, optional=True)
            for half, target in zip("kv", self.kv_scales)
            for name in (f"{place}.{half}_scale", f"{place}.{half}_proj.{half}_scale")
        ]

    def kv_spec(self) -> PagedSpec | WindowSpec:
        """What this layer keeps of every token on this rank."""
        shape = self.shape
        if shape.window is None:
            return PagedSpec(num_kv_heads=shape.kv_heads, head_dim=shape.head_dim, dtype=self.kv_dtype)
        return WindowSpec(num_kv_heads=shape.kv_heads, head_dim=shape.head_dim, window=shape.window, dtype=self.kv_dtype)

    def forward(
        self, qkv: torch.Tensor, ctx: ForwardContext, q_norm: RMSNorm | None = None, k_norm: RMSNorm | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        batch = ctx.batch
        norms = (None, None, 0.0) if q_norm is None or k_norm is None else (q_norm.weight, k_norm.weight, q_norm.eps)
        # q: [T, heads, head_dim]
        q = self.ops.rope_and_write(qkv, self.kv, batch.positions, batch.slots[self.group], self.cos_sin, *norms, self.kv_scales)
        return self.backend.run(ctx.attention[self.group], q, self.kv, self.shape, self.kv_scales, sinks).flatten(1)
