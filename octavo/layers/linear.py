"""The one linear layer: any scheme of weights, any cut over ranks, several checkpoint tensors fused in one product or one alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter, whole
from octavo.layers.norm import RMSNorm
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut


class Linear(Layer):
    """x [T, in] -> [T, out].

    `out` is a size, or for a fused layer the sizes of its parts under their checkpoint names, which stand beside the layer's own path
    (`self_attn.qkv_proj` fuses `self_attn.q_proj` ...). Cut along OUT, each rank computes its stretch of every part; cut along IN, the
    ranks' results are summed. `unit` features are never separated by a cut.

    What comes directly before and after the product may be given with it, to be done in one operation where there is one: a norm of x; a
    gate, by the name of its activation; a residual, to which the result is added (and which may be written over). `scale` multiplies the
    result before that.
    """

    def __init__(
        self, in_features: int, out: int | Mapping[str, int], shard: Shard = Shard.NONE, *,
        unit: int = 1, bias: bool = False, padded: bool = False, scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"": out} if isinstance(out, int) else out
        self.shard = shard
        self.inside = Extent(in_features, unit)
        self.parts = tuple(Extent(size, unit, name, padded) for name, size in sizes.items())
        self.has_bias, self.scale = bias, scale
        self.bias: nn.Parameter | None = None

    def bind(self, path: str, env: Env) -> None:
        self.path = path
        self.ops, self.group, self.scheme, self.dtype = env.ops, env.mesh.tp, env.scheme((path, *self._part_paths())), env.dtype
        self.shares = [part.share(self.group)[1] if self.shard is Shard.OUT else part.size for part in self.parts]
        self.adds = self.shard is not Shard.IN or self.group.rank == 0  # of ranks whose results are summed, one brings the residual
        in_here = self.inside.share(self.group)[1] if self.shard is Shard.IN else self.inside.size
        for name, spec in self._specs(in_here, sum(self.shares)).items():
            setattr(self, name, parameter(spec.shape, spec.dtype, env.device))

    def _specs(self, in_features: int, out_features: int) -> dict[str, ParamSpec]:
        specs = self.scheme.params(in_features, out_features, self.dtype)
        return specs | ({"bias": ParamSpec((out_features,), self.dtype, ("out",), added=True)} if self.has_bias else {})

    def _part_paths(self) -> list[str]:
        """Where a checkpoint that fuses nothing has each part."""
        parent = self.path.rpartition(".")[0]
        return [f"{parent}.{part.name}".lstrip(".") if part.name else self.path for part in self.parts]

    def weights(self) -> list[Weight]:
        """Every parameter by parts, and if it has several parts also whole."""
        part_paths = self._part_paths()
        found: list[Weight] = []
        for index, (part, path) in enumerate(zip(self.parts, part_paths)):
            for name, spec in self._specs(self.inside.size, part.size).items():
                full = f"{path}.{name}"
                put, place = partial(self._put, name, index), whole(self._place(name, index, spec), spec)
                found.append(Weight(full, spec.shape, frozenset({full}), put, place=place))
        if len(self.parts) > 1:
            for name, spec in self._specs(self.inside.size, sum(part.size for part in self.parts)).items():
                pieces = frozenset(f"{path}.{name}" for path in part_paths)
                put, place = partial(self._put_whole, name), whole(self.get_parameter(name).data, spec)
                found.append(Weight(f"{self.path}.{name}", spec.shape, pieces, put, place=place))
        return found

    def _put(self, name: str, index: int, tensor: torch.Tensor) -> None:
        """Cut one part of a parameter and copy it to its place."""
        part = self.parts[index]
        spec = self._specs(self.inside.size, part.size)[name]
        piece = cut(tensor, spec, self.shard, self.inside if self.shard is Shard.IN else part, self.group)
        self._place(name, index, spec).copy_(piece)

    def _place(self, name: str, index: int, spec: ParamSpec) -> torch.Tensor:
        """Where this rank keeps its piece of a part of a parameter."""
        target = self.get_parameter(name).data
        if "out" not in spec.axes:
            return target
        axis = spec.axes.index("out")
        grain = spec.grain_of(axis)
        return target.narrow(axis, sum(self.shares[:index]) // grain, self.shares[index] // grain)

    def _put_whole(self, name: str, tensor: torch.Tensor) -> None:
        spec = self._specs(self.inside.size, sum(part.size for part in self.parts))[name]
        axis = spec.axes.index("out")
        sizes = [part.size // spec.grain_of(axis) for part in self.parts]
        for index, piece in enumerate(tensor.split(sizes, dim=axis)):
            self._put(name, index, piece)

    def finish(self) -> None:
        self.scheme.finish(self)

    def forward(
        self, x: torch.Tensor, norm: RMSNorm | None = None, gate: str | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.scheme.apply(self, x, None if norm is None else (norm.weight, norm.eps), gate, residual if self.adds else None)
        return self.group.all_reduce(y) if self.shard is Shard.IN else y
