"""How long steps took: the last few thousand, always kept, for the cost model to learn from."""

from __future__ import annotations

from array import array

from octavo.core.plan import StepShape
from octavo.plan.fit import Timing

KEPT = 8192
COLUMNS = len(StepShape._fields) + 1


class StepLog:
    """A step's time is the distance from the end of the step before, so it includes whatever the host did not hide; after a rest, from its
    own beginning. They are rows of plain numbers in memory that is there from the start: objects would make a process grow for hours."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._rows = array("d", bytes(8 * COLUMNS * kept))  # shape and seconds of each, step n in row n modulo `kept`
        self.num_steps = 0  # ever
        self._since_s: float | None = None

    def begin(self, now_s: float) -> None:
        """A step is about to be planned."""
        if self._since_s is None:
            self._since_s = now_s

    def end(self, shape: StepShape, now_s: float) -> float:
        """The oldest step has ended; how long it took."""
        assert self._since_s is not None, "a step begins before it ends"
        seconds = now_s - self._since_s
        at = self.num_steps % self._kept * COLUMNS
        self._rows[at : at + COLUMNS] = array("d", (*shape, seconds))
        self.num_steps += 1
        self._since_s = now_s
        return seconds

    def rest(self) -> None:
        """The time until the next step begins is no step's: there was nothing to do, or a step failed."""
        self._since_s = None

    def timings(self, most: int = KEPT) -> list[Timing]:
        """Oldest first; where there are more than `most`, those evenly spread among them."""
        num_kept = min(self.num_steps, self._kept)
        stride = max(1, -(-num_kept // most))
        numbers = range(self.num_steps - 1, self.num_steps - 1 - num_kept, -stride)
        starts = [number % self._kept * COLUMNS for number in reversed(numbers)]
        rows = (self._rows[start : start + COLUMNS] for start in starts)
        return [Timing(StepShape(*map(int, shape)), seconds) for *shape, seconds in rows]
