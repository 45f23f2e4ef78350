"""Which ranks work together, and on what."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Group:
    """Ranks that share one piece of work. A group of one is identity, so that no layer asks how many there are; what several do is in
    `octavo.parallel.collectives`. Every rank of a group makes the same calls in the same order."""

    rank: int = 0
    size: int = 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over the ranks, to the bit the same on each. May be written over x."""
        assert self.size == 1
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """The x of all ranks beside each other along the last axis."""
        assert self.size == 1
        return x

    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        """The x [n, ...] of all ranks one after the other, [size * n, ...]."""
        assert self.size == 1
        return x

    def sum_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Of the sum of x [size * n, ...] over the ranks this rank's n rows."""
        assert self.size == 1
        return x

    def exchange(self, x: torch.Tensor, given: list[int] | None = None, taken: list[int] | None = None) -> torch.Tensor:
        """x [size * n, ...] holds n rows for each rank, in order -> the n rows that each rank has for this one, likewise. Or as many rows
        for each rank as `given` says, and from each as many as `taken` says."""
        assert self.size == 1
        return x

    def best(self, tokens: torch.Tensor, peaks: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each rank has the largest logits of its part of the vocabulary, `peaks` [N] float32, and their `tokens` [N], counted from
        its `first`: those of the whole. Of equals the lowest rank's; NaN counts as largest."""
        assert self.size == 1
        assert first == 0
        return tokens, peaks

    def agreed(self, x: torch.Tensor) -> torch.Tensor:
        """The x of rank 0. May be written over x."""
        assert self.size == 1
        return x

    def send(self, x: torch.Tensor, to: int) -> None:
        """Give x to one other rank of the group, which receives it."""
        raise AssertionError("there is no other rank")

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """What rank `source` sends, written over x."""
        raise AssertionError("there is no other rank")


@dataclass(frozen=True)
class Mesh:
    """The groups that this rank belongs to."""

    tp: Group = Group()  # cuts layers
    pp: Group = Group()  # cuts the stack of layers into stages
    dp: Group = Group()  # copies
    ep: Group = Group()  # spreads whole experts: over tp and dp
