"""Multi-head latent attention over the paged memory of one layer: what is kept of a token is one vector for all heads."""

from __future__ import annotations

import torch

from octavo.attention.backend import AttentionShape
from octavo.config.latent import Latent
from octavo.config.rope import Rope
from octavo.context import ForwardContext
from octavo.core.kv.specs import LatentSpec
from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter
from octavo.layers.norm import RMSNorm
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut


class Expansion(Layer):
    """The weights that make each head's key and value of the kept vector. They are never multiplied with it: queries go to the vector's
    space before attention, and results come back after it ("absorption", DeepSeek-V2, arXiv 2405.04434, section 2.1.2)."""

    def __init__(self, heads: int, latent: Latent) -> None:
        super().__init__()
        self.latent, each = latent, latent.plain + latent.value
        self.out = Extent(heads * each, each, name="heads")

    def bind(self, path: str, env: Env) -> None:
        self.path, self.group = path, env.mesh.tp
        latent, heads = self.latent, self.out.share(self.group)[1] // self.out.unit
        self.keys = parameter((heads, latent.plain, latent.rank), env.dtype, env.device)
        self.values = parameter((heads, latent.value, latent.rank), env.dtype, env.device)

    def weights(self) -> list[Weight]:
        name = f"{self.path}.weight"
        return [Weight(name, (self.out.size, self.latent.rank), frozenset({name}), self._put)]

    def _put(self, tensor: torch.Tensor) -> None:
        spec = ParamSpec(tuple(tensor.shape), tensor.dtype, ("out", "in"))
        here = cut(tensor, spec, Shard.OUT, self.out, self.group).unflatten(0, (-1, self.out.unit))  # [heads, plain + value, rank]
        self.keys.data.copy_(here[:, : self.latent.plain])
        self.values.data.copy_(here[:, self.latent.plain :])

    def into(self, q: torch.Tensor, out: torch.Tensor) -> None:
        """Queries without position [T, heads, plain] into the vector's space, written to `out` [T, heads, rank]."""
        torch.bmm(q.transpose(0, 1), self.keys, out=out.transpose(0, 1))

    def back(self, attended: torch.Tensor) -> torch.Tensor:
        """What attention gave [T, heads, rank] -> [T, heads * value]."""
        return torch.bmm(attended.transpose(0, 1), self.values.transpose(1, 2)).transpose(0, 1).flatten(1)


class LatentAttention(Layer):
    """Queries of the batch's tokens and what is to be kept of them -> [T, heads, rank], over all of each context.

    `kv` [num_blocks, 1, block_tokens, 1, width] and `group` are set as those of `PagedAttention` are.
    """

    kv: torch.Tensor
    kv_scales: torch.Tensor | None = None
    group: int

    def __init__(self, heads: int, latent: Latent, scale: float, rope: Rope) -> None:
        super().__init__()
        self.heads, self.latent, self.scale, self.rope = Extent(heads, name="heads"), latent, scale, rope

    def bind(self, path: str, env: Env) -> None:
        heads = self.heads.share(env.mesh.tp)[1]
        self.shape = AttentionShape(heads, 1, self.latent.width, self.scale, value_dim=self.latent.rank)
        self.ops, self.backend, self.kv_dtype, self.cos_sin = env.ops, env.attention, env.kv_dtype, env.rope_table(self.rope)

    def kv_spec(self) -> LatentSpec:
        """The same on every rank."""
        return LatentSpec(self.latent.width, self.kv_dtype)

    def forward(
        self, q: torch.Tensor, kept: torch.Tensor, expansion: Expansion, norm: RMSNorm, ctx: ForwardContext
    ) -> torch.Tensor:
        """q [T, heads, plain + rotated], kept [T, width], of which `norm` is for the vector."""
        batch, latent = ctx.batch, self.latent
        whole = torch.empty((*q.shape[:2], latent.width), dtype=q.dtype, device=q.device)
        expansion.into(q[:, :, : latent.plain], whole[:, :, : latent.rank])
        self.ops.latent_rope_and_write(
            q[:, :, latent.plain :], kept, whole[:, :, latent.rank :], self.kv, batch.positions, batch.slots[self.group], self.cos_sin,
            norm.weight, norm.eps,
        )  # fmt: skip
        return self.backend.run(ctx.attention[self.group], whole, self.kv, self.shape)
