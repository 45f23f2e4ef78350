"""A step between its making and its commit."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.plan import Admission, Growth, Plan, Slice, StepShape
from octavo.core.sequence import Sequence


class Step:
    """A plan in the making: what is left of the limits, and what has been decided."""

    __slots__ = (  # noqa: RUF023  in the order of __init__
        "budget", "left", "samples", "slices", "sequences", "chunks", "chunk_tokens", "chunk_pairs", "admitted", "grown", "preempted",
        "decodes_first",
    )  # fmt: skip

    def __init__(self, budget: int, samples: int) -> None:
        self.budget = budget  # tokens
        self.left = budget  # of them
        self.samples = samples  # sequences that may still sample in this step
        self.slices: list[Slice] = []
        self.sequences: list[Sequence] = []  # of the slices
        self.chunks: list[Sequence] = []  # those that were fed known tokens
        self.chunk_tokens = 0
        self.chunk_pairs = 0  # of a token of a chunk and one that it attends
        self.admitted: list[Admission] = []
        self.grown: list[Growth] = []
        self.preempted = False
        self.decodes_first = True

    def spend(self, n: int) -> None:
        """Account for `n` sequences that decode one token each."""
        self.left -= n
        self.samples -= n


@dataclass(slots=True)
class Flight:
    """A plan that was given out and not committed yet."""

    plan: Plan
    sequences: list[Sequence]
    registered: list[tuple[Sequence, list[int]]]  # blocks that others may find since this plan
    shape: StepShape
