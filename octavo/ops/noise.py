"""Random numbers by counting: the number for a sampled token is a hash of (seed, continuation, position) and of nothing else.

So a sequence that resumes after preemption, runs in another batch or in other chunks draws the same numbers. The hash is SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): each key starts its own stream, the position is
the count in it.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GOLDEN, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _MUL1 & _MASK
    value = (value ^ (value >> 27)) * _MUL2 & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, index: int) -> int:
    """The stream of continuation `index` of a request with `seed`, as a signed 64-bit number."""
    return _signed(_mix(_mix(seed + _GOLDEN) + (index + 1) * _GOLDEN))


def uniform(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[N] float64 in [0, 1) with 52 random bits, from `keys` [N] int64 and `positions` [N] int64.

    With 52 bits `u * total < total` holds after rounding for every positive float64 `total`.
    """
    z = keys + positions * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_MUL1)
    z = (z ^ _shift(z, 27)) * _signed(_MUL2)
    z = z ^ _shift(z, 31)
    return _shift(z, 12).to(torch.float64) * 2.0**-52


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of 64-bit words kept in signed integers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
