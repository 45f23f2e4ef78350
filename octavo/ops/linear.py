"""The product with a weight matrix, and the layout that it wants its weight in."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, in] times weight [out, in] transposed, plus bias [out] -> [T, out]."""
    return F.linear(x, weight, bias)


def pack_linear(weight: torch.Tensor) -> torch.Tensor:
    """Lay a weight [out, in] out as `linear` of the same set reads it. Called once, when all weights are loaded; it may
    write over the memory of the old. `embedding` of the same set reads this layout too, for a head that shares the table."""
    return weight
