"""The product with a weight matrix and what a layer does directly before and after it, and the layout that it wants its weight in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F

from octavo.ops.gated import gelu_tanh_mul, silu_mul
from octavo.ops.rms_norm import rms_norm

Norm = tuple[torch.Tensor, float]  # weight [in] float32, eps
W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)  # a weight in whatever layout


class LinearOp(Protocol[W_contra]):
    def __call__(
        self,
        x: torch.Tensor,
        weight: W_contra,
        bias: torch.Tensor | None = None,
        norm: Norm | None = None,
        gate: str | None = None,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """residual + scale * gate(norm(x) W^T + bias), where all but the product may be left out.

        x         [T, in]
        weight    [out, in], as `pack_linear` laid it out, or packed in fewer bits (`octavo/ops/packed_linear.py`)
        bias      [out]
        norm      RMS norm over `in`
        gate      an activation's name: the first half of the result is its gate, the second what it multiplies
        residual  [T, out], or with a gate [T, out / 2]; a twin may write the result over it
        ->        [T, out], or with a gate [T, out / 2]
        """
        ...


class Product(Protocol[W_contra]):
    def __call__(
        self, x: torch.Tensor, weight: W_contra, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
    ) -> torch.Tensor:
        """residual + scale * (x W^T + bias)."""
        ...


Gates = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]


def around(product: Product[W], rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor], gates: Gates) -> LinearOp[W]:
    """The whole operation from its parts, one after another."""

    def linear(
        x: torch.Tensor,
        weight: W,
        bias: torch.Tensor | None = None,
        norm: Norm | None = None,
        gate: str | None = None,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        if norm is not None:
            x = rms_norm(x, *norm)
        if gate is None:
            return product(x, weight, bias, residual, scale)
        return added(gates[gate](product(x, weight, bias, None, 1.0)), residual, scale)

    return linear


def added(y: torch.Tensor, residual: torch.Tensor | None, scale: float) -> torch.Tensor:
    """residual + scale * y."""
    if residual is None:
        return y if scale == 1.0 else y * scale
    return torch.add(residual, y, alpha=scale)


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
) -> torch.Tensor:
    return added(F.linear(x, weight, bias), residual, scale)


REFERENCE_GATES = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}
linear = around(product, rms_norm, REFERENCE_GATES)


def pack_linear(weight: torch.Tensor) -> torch.Tensor:
    """Lay a weight [out, in] out as `linear` of the same set reads it. Called once, when all weights are loaded; it may
    write over the memory of the old. `embedding` of the same set reads this layout too, for a head that shares the table."""
    return weight
