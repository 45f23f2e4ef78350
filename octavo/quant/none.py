"""Plain weights in the dtype of the activations."""

from __future__ import annotations

from typing import Any

import torch

from octavo.ops.linear import Norm
from octavo.ops.route import Routes
from octavo.parallel.shard import ParamSpec


class Plain:
    def params(self, in_features: int, out_features: int, dtype: torch.dtype) -> dict[str, ParamSpec]:
        return {"weight": ParamSpec((out_features, in_features), dtype, ("out", "in"))}

    def finish(self, layer: Any) -> None:
        layer.weight.data = layer.ops.pack_linear(layer.weight.data)

    def apply(self, layer: Any, x: torch.Tensor, norm: Norm | None, gate: str | None, residual: torch.Tensor | None) -> torch.Tensor:
        return layer.ops.linear(x, layer.weight, layer.bias, norm, gate, residual, layer.scale)

    def rows(self, layer: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        return layer.ops.embedding(tokens, layer.weight, first)

    def finish_grouped(self, layer: Any) -> None:
        layer.weight.data = layer.ops.pack_grouped(layer.weight.data)

    def grouped_linear(self, layer: Any, x: torch.Tensor, routes: Routes, gate: str) -> torch.Tensor:
        return layer.ops.grouped_linear(x, layer.weight, layer.bias, routes, gate)

    def grouped_sum(self, layer: Any, x: torch.Tensor, routes: Routes, residual: torch.Tensor | None) -> torch.Tensor:
        return layer.ops.grouped_sum(x, layer.weight, layer.bias, routes, residual)
