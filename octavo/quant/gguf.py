"""GGUF's blocks of 32 values kept packed in memory: Q4_0, Q4_1 and Q8_0.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (block_q4_0, block_q4_1, block_q8_0).
"""

from __future__ import annotations

from typing import Any

import torch

from octavo.ops.linear import Norm
from octavo.ops.packed_linear import GROUP, Packed, pack, unpack
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
        layer.packed = repack(layer.weight.data, self.kind)
        layer.weight.data = layer.packed.codes

    def apply(self, layer: Any, x: torch.Tensor, norm: Norm | None, gate: str | None, residual: torch.Tensor | None) -> torch.Tensor:
        return layer.ops.packed_linear(x, layer.packed, layer.bias, norm, gate, residual, layer.scale)

    def rows(self, layer: Any, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """A table that no head shares was not finished: it lies in blocks."""
        if layer.weight.data.dim() != 3:
            return layer.ops.packed_rows(layer.packed, tokens, first, layer.dtype)
        local = tokens - first
        here = (local >= 0) & (local < layer.weight.shape[0])
        return (unpack(repack(layer.weight.data[local.where(here, 0)], self.kind)) * here.unsqueeze(-1)).to(layer.dtype)


def repack(blocks: torch.Tensor, kind: str) -> Packed:
    """blocks [n, k / 32, block bytes] uint8 -> codes and scales as `ops/packed_linear` wants them."""
    numbers = 4 if kind == "Q4_1" else 2  # bytes before the codes: a scale, and an offset in Q4_1
    halves = blocks[:, :, :numbers].contiguous().view(torch.float16)  # [n, k / 32, 1 or 2]
    offset = halves[:, :, 1] if kind == "Q4_1" else None
    codes = blocks[:, :, numbers:]
    if kind == "Q8_0":
        return pack(codes.contiguous().view(torch.int8), halves[:, :, 0], None, bits=8)
    return pack(torch.cat((codes & 15, codes >> 4), dim=2), halves[:, :, 0], offset, bits=4)
