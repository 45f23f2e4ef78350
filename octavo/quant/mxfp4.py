"""Experts whose weights stay in MXFP4 (octavo/ops/mxfp4.py), as GPT-OSS stores them; everything beside them is plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.ops.mxfp4 import BYTES, GROUP, Mxfp4, rearranged
from octavo.ops.route import Routes
from octavo.parallel.shard import ParamSpec
from octavo.quant.none import Plain
from octavo.quant.scheme import Scheme


class Mxfp4Experts(Plain):
    """Of each weight its `blocks` and its `scales`."""

    def params(self, in_features: int, out_features: int, dtype: torch.dtype) -> dict[str, ParamSpec]:
        groups = in_features // GROUP
        return {
            "blocks": ParamSpec((out_features, groups, BYTES), torch.uint8, ("out", "in", None), (1, GROUP, 1)),
            "scales": ParamSpec((out_features, groups), torch.uint8, ("out", "in"), (1, GROUP)),
        }

    def finish_grouped(self, layer: Any) -> None:
        for expert in layer.blocks.data:
            expert.copy_(rearranged(expert))
        layer.packed = Mxfp4(layer.blocks.data, layer.scales.data)

    def grouped_linear(self, layer: Any, x: torch.Tensor, routes: Routes, gate: str) -> torch.Tensor:
        return layer.ops.mxfp4_linear(x, layer.packed, layer.bias, routes, gate)

    def grouped_sum(self, layer: Any, x: torch.Tensor, routes: Routes, residual: torch.Tensor | None) -> torch.Tensor:
        return layer.ops.mxfp4_sum(x, layer.packed, layer.bias, routes, residual)


def experts_in_mxfp4(paths: Sequence[str]) -> Scheme:
    """What `ChooseScheme` says: all of a layer's experts lie in tensors of their own."""
    return Mxfp4Experts() if ".experts." in paths[0] else Plain()
