"""Whole decode steps as CUDA graphs, or on a CPU as tapes: gather from rows, forward, sample, write back, all in one launch.

A graph is captured for a padded number of sequences and for a way of sampling (`Recipe.everywhere`). What differs from step to step lives
in memory that the graph reads: the rows, and the list of row numbers, which the host copies only when it has changed. Padding sequences use
the padding row, whose KV goes nowhere.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from octavo.capture.record import Record, Replay
from octavo.core.plan import Plan, Slice
from octavo.ops.native.record import NotHeld
from octavo.sampling.sampled import Sampled
from octavo.sampling.sampler import Recipe

log = logging.getLogger(__name__)

DecodeStep = Callable[[torch.Tensor, Recipe, int], Sampled]  # row numbers [S] int64, bound of their contexts -> what the step sampled


@dataclass(frozen=True)
class Captured:
    size: int
    replay: Replay
    sampled: Sampled

    def first(self, num_slices: int) -> Captured:
        """For a step of fewer sequences than it was padded to."""
        return replace(self, sampled=self.sampled.first(num_slices))


class DecodeGraphs:
    """Captured decode steps by (padded size, length, recipe). `sizes` ascend; steps of more sequences than the last run op by op.

    `lengths` ascend too, and are bounds of the contexts that a step is laid for: usually one, which all contexts are within; with a smaller
    one before it (`--most-model-len`), steps in which all sequences are within that are captured for themselves.
    """

    def __init__(
        self, decode: DecodeStep, sizes: Sequence[int], lengths: Sequence[int], padding_row: int, device: torch.device,
        record: Record[Sampled],
    ) -> None:  # fmt: skip
        self._decode, self._sizes, self._lengths, self._padding_row = decode, list(sizes), list(lengths), padding_row
        self._record = record
        self._captured: dict[tuple[int, int, Recipe], Captured | None] = {}  # None: it cannot be recorded
        self._row_ids = torch.full((self._sizes[-1],), padding_row, dtype=torch.int64, device=device)
        self._shown: list[int] = []  # what the host last wrote to _row_ids
        self._last: tuple[tuple[Slice, ...], int, Captured | None] = ((), 0, None)

    def capture(self, recipes: Sequence[Recipe]) -> None:
        """Capture all sizes for these ways of sampling, the largest first, so that the smaller ones fit in its memory."""
        for recipe in recipes:
            for length in reversed(self._lengths):
                for size in reversed(self._sizes):
                    self._capture(size, length, recipe)

    def step(self, plan: Plan, recipe: Recipe, longest: int) -> Sampled | None:
        """Replay the step of `plan`, its news applied to the rows already, no context being longer than `longest` after it; None if it is
        none that a graph can do."""
        length = self._length(longest)
        if plan.slices != self._last[0] or length != self._last[1]:  # else the graph and the rows in it are those of the step before
            captured = self._find(plan, recipe, length)
            if captured is not None:
                self._show([piece.row for piece in plan.slices], captured.size)
                captured = captured.first(len(plan.slices))
            self._last = plan.slices, length, captured
        captured = self._last[2]
        if captured is None:
            return None
        captured.replay()
        sampled = captured.sampled
        return sampled if sampled.tokens.is_cuda else sampled.copied()  # on a GPU the copy to the host comes before the next step

    def _length(self, longest: int) -> int:
        """The class of lengths; drafts that were refused may have raised the bound beyond what there can be."""
        return self._lengths[min(bisect_left(self._lengths, longest), len(self._lengths) - 1)]

    def _find(self, plan: Plan, recipe: Recipe, length: int) -> Captured | None:
        num_slices = len(plan.slices)
        if plan.num_tokens != num_slices or num_slices > self._sizes[-1]:
            return None
        if any(piece.tokens or not piece.sample for piece in plan.slices):
            return None
        common = recipe.everywhere()
        if common is None:
            return None
        size = self._sizes[bisect_left(self._sizes, num_slices)]
        key = (size, length, common)
        return self._captured[key] if key in self._captured else self._capture(*key)

    def _show(self, row_ids: list[int], size: int) -> None:
        wanted = row_ids + [self._padding_row] * (size - len(row_ids))
        if wanted != self._shown[:size]:
            news = torch.tensor(wanted)
            self._row_ids[:size].copy_(news.pin_memory() if self._row_ids.is_cuda else news, non_blocking=True)
            self._shown[:size] = wanted

    def _capture(self, size: int, length: int, recipe: Recipe) -> Captured | None:
        self._show([], size)
        row_ids = self._row_ids[:size]
        try:
            captured = Captured(size, *self._record(lambda: self._decode(row_ids, recipe, length)))
        except NotHeld as what:
            log.info("decode steps of %d sequences run op by op, as no tape holds %s", size, what)
            captured = None
        self._captured[size, length, recipe] = captured
        return captured
