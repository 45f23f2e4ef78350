"""Angles of rotary position embeddings, for every kind that a config can name.

Kinds whose frequencies depend on how long the text is (dynamic, longrope) go by the longest length that is served: keys stay in the
paged memory with the angle they were written with, so all must be turned alike. For short texts to be turned as in training, serve
no more than the trained length.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from octavo.config.rope import Rope


def rope_table(rope: Rope, max_length: int, device: torch.device) -> torch.Tensor:
    """[max_length, rope.dim] float32: cosines of the dim / 2 frequencies at each position, then sines."""
    angles = torch.outer(torch.arange(max_length, dtype=torch.float32), FREQUENCIES[rope.kind](rope, max_length))
    return (torch.cat((angles.cos(), angles.sin()), dim=1) * _attention_factor(rope)).to(device)


def _plain(rope: Rope, max_length: int, theta: float | None = None) -> torch.Tensor:
    """Frequencies theta^(-2i / dim) (Su et al. 2021), one for each rotated pair."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    return 1.0 / (rope.theta if theta is None else theta) ** exponents


def _linear(rope: Rope, max_length: int) -> torch.Tensor:
    """Positions squeezed by the factor (Chen et al. 2023)."""
    return _plain(rope, max_length) / rope.factor


def _dynamic(rope: Rope, max_length: int) -> torch.Tensor:
    """NTK-aware: the base grows with the length beyond the trained one."""
    stretch = rope.factor * max(max_length, rope.max_position) / rope.max_position - (rope.factor - 1)
    return _plain(rope, max_length, rope.theta * stretch ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: Rope, max_length: int) -> torch.Tensor:
    """Llama 3.1: short waves stay, long ones are squeezed by the factor, those between are mixed."""
    plain = _plain(rope, max_length)
    turns = rope.original_max_position / (2 * math.pi / plain)  # of each wave within the trained length
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(rope: Rope, max_length: int) -> torch.Tensor:
    """YaRN (Peng et al. 2023): a ramp over the dimensions between kept and squeezed frequencies."""

    def dimension(turns: float) -> float:
        return rope.dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    plain = _plain(rope, max_length)
    squeeze = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / rope.factor * squeeze + plain * (1 - squeeze)


def _longrope(rope: Rope, max_length: int) -> torch.Tensor:
    """LongRoPE (Ding et al. 2024): every frequency has its own factor, one set for the trained length and one for beyond."""
    factors = rope.long_factor if max_length > rope.original_max_position else rope.short_factor
    return _plain(rope, max_length) / torch.tensor(factors)


FREQUENCIES: dict[str, Callable[[Rope, int], torch.Tensor]] = {
    "plain": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _attention_factor(rope: Rope) -> float:
    """What cosines and sines are multiplied by."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    if rope.kind == "longrope":
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0
