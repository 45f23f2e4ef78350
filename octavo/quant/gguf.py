"""GGUF's blocks of 32 values kept packed in memory: Q4_0, Q4_1 and Q8_0.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (block_q4_0, block_q4_1, block_q8_0).
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.ops.linear import Norm
from octavo.ops.packed_linear import GROUP, pack_blocks, unpack
from octavo.parallel.shard import ParamSpec

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


class GGUFBlocks:
    """Weights as blocks of the file, [out, in / 32, block bytes], laid out once for the product."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # a key of BLOCK_BYTES

    def params(self, in_features: int, out_features: int, dtype: torch.dtype) -> dict[str, ParamSpec]:
        shape = (out_features, in_features // GROUP, BLOCK_BYTES[self.kind])
        return {"weight": ParamSpec(shape, torch.uint8, ("out", "in", None), (1, GROUP, 1))}

    def finish(self, layer: Any) -> None:
        layer.packed = layer.ops.pack_blocks(layer.weight.data, self.kind)
        layer.weight.data = layer.packed.codes

    def apply(self, layer: Any, x: torch.Tensor, norm: Norm | None, gate: str | None, residual: torch.Tensor | None) -> torch.Tensor:
        return layer.ops.packed_linear(x, layer.packed, layer.bias, norm, gate, residual, layer.scale)

    def rows(self, layer: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """A table that no head shares was not finished: it lies in blocks."""
        if layer.weight.data.dim() != 3:
            return layer.ops.packed_rows(layer.packed, tokens, first, layer.dtype)
        local = tokens - first
        here = (local >= 0) & (local < layer.weight.shape[0])
        return (unpack(pack_blocks(layer.weight.data[local.where(here, 0)], self.kind)) * here.unsqueeze(-1)).to(layer.dtype)
