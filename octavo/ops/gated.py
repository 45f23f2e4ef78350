"""The gate of an MLP: activation(gate) * up, from the packed output of its first product."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2n] with the gates first -> [T, n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """The same with the tanh form of GELU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


ALPHA, LIMIT = 1.702, 7.0


def clamped_swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2n] -> [T, n]: gate * sigmoid(1.702 gate) * (up + 1), gates up to 7 and ups within 7 of 0 (gpt-oss, OpenAI 2025)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)
