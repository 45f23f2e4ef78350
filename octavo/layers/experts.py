"""A mixture of experts in place of an MLP: a router, the experts' weights, and an MLP that every token goes through beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from octavo.config.experts import Experts
from octavo.layers.env import Env
from octavo.layers.layer import Layer, Weight, parameter
from octavo.layers.linear import Linear
from octavo.layers.mlp import Mlp
from octavo.layers.norm import RMSNorm
from octavo.ops.route import Routes
from octavo.parallel.dispatch import first_experts
from octavo.parallel.mesh import Group
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut
from octavo.quant.scheme import GroupedScheme


@dataclass(frozen=True)
class Names:
    """What checkpoints call the parts, and how they store experts that are fused to one tensor."""

    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    transposed: bool = False  # fused weights are [experts, in, out], unless packed, and gates and ups lie in turn


class Router(Layer):
    """x [T, hidden] -> the experts of each token [T, per_token] int32, and what their results are multiplied by, float32."""

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self.hidden, self.experts = hidden, experts
        self.bias: nn.Parameter | None = None
        self.e_score_correction_bias: nn.Parameter | None = None

    def bind(self, path: str, env: Env) -> None:
        self.path, self.ops = path, env.ops
        num, dtype = self.experts.num, torch.float32 if self.experts.wide_router else env.dtype
        self.weight = parameter((num, self.hidden), dtype, env.device)
        if self.experts.bias:
            self.bias = parameter((num,), dtype, env.device)
        if self.experts.correction:
            self.e_score_correction_bias = parameter((num,), torch.float32, env.device)
        self.tokens = torch.zeros(num, dtype=torch.int64, device=env.device)  # that have gone to each expert, padding included

    def weights(self) -> list[Weight]:
        return [
            Weight(f"{self.path}.{name}", tuple(found.shape), frozenset({f"{self.path}.{name}"}), found.data.copy_)
            for name, found in self.named_parameters(recurse=False)
        ]

    def finish(self) -> None:
        self.weight.data = self.ops.pack_linear(self.weight.data)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.ops.linear(x.float() if self.experts.wide_router else x, self.weight, self.bias)
        return self.ops.route(logits, self.e_score_correction_bias, self.experts.choice, self.tokens)


class GroupedLinear(Layer):
    """The product of each token with the weights of its experts.

    `parts` are the sizes of what is fused, under the names that they have within each expert (`experts.0.gate_proj`). A checkpoint may
    also hold one tensor for all experts, named as the layer. Cut within each expert as a `Linear` is, or where experts are spread over
    ranks, between experts.
    """

    def __init__(self, num: int, in_features: int, parts: Mapping[str, int], shard: Shard, *, bias: bool, transposed: bool) -> None:
        super().__init__()
        self.num, self.shard, self.has_bias, self.transposed = num, shard, bias, transposed
        self.inside = Extent(in_features)
        self.parts = tuple(Extent(size, name=name) for name, size in parts.items())
        self.bias: nn.Parameter | None = None

    def bind(self, path: str, env: Env) -> None:
        self.path, self.ops, self.dtype = path, env.ops, env.dtype
        self.group = env.mesh.tp if env.mesh.ep.size == 1 else Group()
        self.first, end = first_experts(self.num, env.mesh.ep.size)[env.mesh.ep.rank : env.mesh.ep.rank + 2]
        self.num_here = end - self.first
        scheme = env.scheme([path, *(self._path(expert, part.name) for expert in range(self.num) for part in self.parts)])
        if not isinstance(scheme, GroupedScheme):
            raise ValueError(f"{path}: experts cannot be stored by {type(scheme).__name__}; use --quantization none")
        self.scheme = scheme
        self.shares = [part.share(self.group)[1] if self.shard is Shard.OUT else part.size for part in self.parts]
        in_here = self.inside.share(self.group)[1] if self.shard is Shard.IN else self.inside.size
        for name, spec in self._specs(in_here, sum(self.shares)).items():
            setattr(self, name, parameter((self.num_here, *spec.shape), spec.dtype, env.device))

    def _specs(self, in_features: int, out_features: int) -> dict[str, ParamSpec]:
        """The parameters of one expert."""
        specs = self.scheme.params(in_features, out_features, self.dtype)
        return specs | ({"bias": ParamSpec((out_features,), self.dtype, ("out",), added=True)} if self.has_bias else {})

    def _path(self, expert: int, part: str) -> str:
        return f"{self.path.rpartition('.')[0]}.{expert}.{part}"

    def weights(self) -> list[Weight]:
        """Every expert by itself and by parts, and all of them together."""
        found: list[Weight] = []
        for index, part in enumerate(self.parts):
            for name, spec in self._specs(self.inside.size, part.size).items():
                for expert in range(self.num):
                    full = f"{self._path(expert, part.name)}.{name}"
                    put = lambda t, n=name, e=expert, i=index: self._put(n, e, i, t)  # noqa: E731
                    found.append(Weight(full, spec.shape, frozenset({full}), put))
        for name, spec in self._specs(self.inside.size, sum(part.size for part in self.parts)).items():
            pieces = frozenset(f"{self._path(expert, part.name)}.{name}" for expert in range(self.num) for part in self.parts)
            shape = spec.shape[::-1] if self.transposed and name == "weight" else spec.shape
            whole = self.path if name == "weight" else f"{self.path}_{name}"
            found.append(Weight(whole, (self.num, *shape), pieces, lambda t, n=name: self._put_whole(n, t)))
        return found

    def _put(self, name: str, expert: int, index: int, tensor: torch.Tensor) -> None:
        """Cut one part of one expert's parameter and copy it to its place; nothing, where the expert is elsewhere."""
        if not self.first <= expert < self.first + self.num_here:
            return
        part = self.parts[index]
        spec = self._specs(self.inside.size, part.size)[name]
        piece = cut(tensor, spec, self.shard, self.inside if self.shard is Shard.IN else part, self.group)
        target = self.get_parameter(name).data[expert - self.first]
        if "out" in spec.axes:
            axis = spec.axes.index("out")
            grain = spec.grain_of(axis)
            target = target.narrow(axis, sum(self.shares[:index]) // grain, self.shares[index] // grain)
        target.copy_(piece)

    def _put_whole(self, name: str, tensor: torch.Tensor) -> None:
        for expert in range(self.first, self.first + self.num_here):
            own = tensor[expert]
            if self.transposed:
                own = own.T if name == "weight" else own
                own = own.unflatten(0, (-1, len(self.parts))).transpose(0, 1).flatten(0, 1)
            spec = self._specs(self.inside.size, sum(part.size for part in self.parts))[name]
            axis = spec.axes.index("out")
            for index, piece in enumerate(own.split([part.size // spec.grain_of(axis) for part in self.parts], dim=axis)):
                self._put(name, expert, index, piece)

    def finish(self) -> None:
        self.scheme.finish_grouped(self)


class ExpertStack(Layer):
    """All experts of a layer: for each, down(activation(gate(x)) * up(x)); their weighted sum over each token's, of this rank."""

    def __init__(self, hidden: int, experts: Experts, activation: str, names: Names) -> None:
        super().__init__()
        self.activation = experts.activation or activation
        num, inner, kind = experts.num, experts.intermediate, {"bias": experts.bias, "transposed": names.transposed}
        self.gate_up_proj = GroupedLinear(num, hidden, {names.gate: inner, names.up: inner}, Shard.OUT, **kind)
        self.down_proj = GroupedLinear(num, inner, {names.down: hidden}, Shard.IN, **kind)

    def bind(self, path: str, env: Env) -> None:
        self.ops = env.ops

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        first, down = self.gate_up_proj, self.down_proj
        routes = self.ops.share_out(Routes(chosen - first.first if first.first else chosen, weights, first.num_here))
        return down.scheme.grouped_sum(down, first.scheme.grouped_linear(first, x, routes, self.activation), routes, residual)


class ExpertsMlp(Layer):
    """x [T, hidden] -> [T, hidden], with a norm before and a residual after, as `Mlp`."""

    def __init__(self, hidden: int, experts: Experts, activation: str, names: Names) -> None:
        super().__init__()
        self.names, self.shared, self.num_experts = names, bool(experts.shared_intermediate), experts.num
        setattr(self, names.router, Router(hidden, experts))
        self.experts = ExpertStack(hidden, experts, activation, names)
        if self.shared:
            setattr(self, names.shared, Mlp(hidden, experts.shared_intermediate, activation, bias=False))
        self.shared_expert_gate = Linear(hidden, 1) if experts.shared_gate else None

    def bind(self, path: str, env: Env) -> None:
        self.dispatch = env.dispatch(env.mesh, self.num_experts)

    def forward(self, x: torch.Tensor, norm: RMSNorm | None = None, residual: torch.Tensor | None = None) -> torch.Tensor:
        x = x if norm is None else norm(x)
        chosen, weights = getattr(self, self.names.router)(x)
        if self.shared:
            residual = self._beside(x, residual)
        return self.dispatch(self.experts, x, chosen, weights, residual)

    def _beside(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """The residual with what every token gets."""
        beside = getattr(self, self.names.shared)
        if self.shared_expert_gate is None:
            return beside(x, residual=residual)
        y = torch.sigmoid(self.shared_expert_gate(x)) * beside(x)
        return y if residual is None else residual + y
