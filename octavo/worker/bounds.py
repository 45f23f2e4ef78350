"""What the host knows of how long the contexts are, without asking the device."""

from __future__ import annotations

import numpy as np

from octavo.core.plan import Plan, Slice


class Bounds:
    """At least the `computed` of each row, once all plans that it has followed have run: drafts count as if they were accepted."""

    def __init__(self, num_rows: int) -> None:
        self._of = np.zeros(num_rows, np.int64)
        self._slices: tuple[Slice, ...] = ()  # of the plan followed last, and their rows and counts
        self._rows = self._counts = np.zeros(0, np.int64)
        self.longest = 0  # context after the plan followed last, of all its slices

    def follow(self, plan: Plan) -> None:
        """Each plan once, in the order in which they run."""
        for admission in plan.admitted:
            self._of[admission.row] = admission.computed
        if plan.slices != self._slices:  # else it is the steady step of the same sequences
            self._slices = plan.slices
            self._rows = np.fromiter((piece.row for piece in plan.slices), np.int64, len(plan.slices))
            self._counts = np.fromiter((piece.count for piece in plan.slices), np.int64, len(plan.slices))
        self._of[self._rows] += self._counts
        self.longest = int(self._of[self._rows].max(initial=0))

    def of(self, row: int) -> int:
        return int(self._of[row])
