"""Root mean square norm (Zhang and Sennrich 2019), alone and fused with the residual add before it."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; x [..., n], weight [n] float32. Computed in float32, rounded once."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + scale * x, then its norm: gives (normed, new residual), each [T, n]. A twin may write the new residual over the old."""
    residual = torch.add(residual, x, alpha=scale)
    return rms_norm(residual, weight, eps), residual
