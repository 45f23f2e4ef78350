"""RMS norm: alone, together with the residual add before it, and of features that lie on several ranks."""

from __future__ import annotations

import torch

from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut


class RMSNorm(Layer):
    """Normalises the last axis, of size n. The weight is float32 with `offset` added once it is loaded, so no op needs to know of it."""

    def __init__(self, n: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.n, self.eps, self.offset = n, eps, offset

    def bind(self, path: str, env: Env) -> None:
        self.path, self.ops = path, env.ops
        self.weight = parameter((self.n,), torch.float32, env.device)

    def weights(self) -> list[Weight]:
        name = f"{self.path}.weight"
        return [Weight(name, (self.n,), frozenset({name}), lambda tensor: self.weight.data.copy_(tensor))]

    def finish(self) -> None:
        self.weight.data.add_(self.offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of residual + x, and that sum; x alone where nothing has been computed yet. All [T, n]."""
        if residual is None:
            return self.ops.rms_norm(x, self.weight, self.eps), x
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps, 1.0)


class WidthNorm(Layer):
    """RMS norm over all n features of an axis whose units (heads) lie on several ranks; x [T, features here]."""

    def __init__(self, n: int, unit: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.extent, self.eps, self.offset = Extent(n, unit, name="normed heads"), eps, offset

    def bind(self, path: str, env: Env) -> None:
        self.path, self.group = path, env.mesh.tp
        self.weight = parameter((self.extent.share(self.group)[1],), torch.float32, env.device)

    def weights(self) -> list[Weight]:
        name, spec = f"{self.path}.weight", ParamSpec((self.extent.size,), torch.float32, ("out",))
        return [
            Weight(name, spec.shape, frozenset({name}), lambda t: self.weight.data.copy_(cut(t, spec, Shard.OUT, self.extent, self.group)))
        ]

    def finish(self) -> None:
        self.weight.data.add_(self.offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        # Where ranks hold copies, each unit is there as often as any other, so the mean over ranks is that over units.
        mean = self.group.all_reduce(wide.square().mean(-1, keepdim=True)) / self.group.size  # [T, 1]
        return (wide * torch.rsqrt(mean + self.eps) * self.weight).to(x.dtype)
