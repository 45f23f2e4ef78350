"""A step between its making and its commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.core.plan import Admission, Growth, Plan, Slice, StepShape
from octavo.core.sequence import Sequence


@dataclass(slots=True)
class Step:
    """A plan in the making: what is left of the limits, and what has been decided."""

    budget: int  # tokens
    left: int  # of them
    samples: int  # sequences that may still sample in this step
    slices: list[Slice] = field(default_factory=list[Slice])
    sequences: list[Sequence] = field(default_factory=list[Sequence])  # of the slices
    chunks: list[Sequence] = field(default_factory=list[Sequence])  # those that were fed known tokens
    chunk_tokens: int = 0
    chunk_pairs: int = 0  # of a token of a chunk and one that it attends
    admitted: list[Admission] = field(default_factory=list[Admission])
    grown: list[Growth] = field(default_factory=list[Growth])
    preempted: bool = False
    decodes_first: bool = True

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
