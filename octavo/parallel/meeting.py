"""Who takes part and where they meet: plain data without torch, which the process that starts the ranks gives to each."""

from __future__ import annotations

from dataclasses import dataclass

TENSOR, PIPELINE, DATA = range(3)  # axes of a rank's place
TIMEOUT_S = 600.0  # of a collective in which a rank is missing


@dataclass(frozen=True)
class Layout:
    """How ranks are numbered: neighbours cut layers, then come stages, then copies."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    experts: bool = False  # whether whole experts are spread over tensor and data ranks

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def place(self, rank: int) -> tuple[int, int, int]:
        """A rank's number along each axis."""
        return rank % self.tensor, rank // self.tensor % self.pipeline, rank // (self.tensor * self.pipeline)

    def groups(self, *axes: int) -> list[list[int]]:
        """The ranks of every group along these axes: those that differ in nothing else."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.num_ranks):
            found.setdefault(tuple(number for axis, number in enumerate(self.place(rank)) if axis not in axes), []).append(rank)
        return list(found.values())


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of one world find each other: a store of keys that one process keeps (`octavo.parallel.collectives`)."""

    host: str
    port: int
    layout: Layout
    timeout_s: float = TIMEOUT_S
