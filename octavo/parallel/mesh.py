"""Which ranks work together, and on what."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Group:
    """Ranks that share one piece of work. A group of one is identity, so that no layer asks how many there are."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over the ranks."""
        assert self.size == 1
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The x of all ranks beside each other along the last axis."""
        assert self.size == 1
        return x


@dataclass(frozen=True)
class Mesh:
    """The groups that this rank belongs to."""

    tp: Group = Group()  # cuts layers
    pp: Group = Group()  # cuts the stack of layers into stages
    dp: Group = Group()  # copies
    ep: Group = Group()  # spreads whole experts
