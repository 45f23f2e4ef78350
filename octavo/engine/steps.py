"""How long steps took: the last few thousand, always kept, for the cost model to learn from."""

from __future__ import annotations

from collections import deque

from octavo.core.plan import StepShape
from octavo.plan.fit import Timing

KEPT = 8192


class StepLog:
    """A step's time is the distance from the end of the step before, so it includes whatever the host did not hide; after a rest, from its
    own beginning."""

    def __init__(self, kept: int = KEPT) -> None:
        self._timings: deque[Timing] = deque(maxlen=kept)
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
        self._timings.append(Timing(shape, seconds))
        self.num_steps += 1
        self._since_s = now_s
        return seconds

    def rest(self) -> None:
        """The time until the next step begins is no step's: there was nothing to do, or a step failed."""
        self._since_s = None

    def timings(self) -> list[Timing]:
        """Oldest first."""
        return list(self._timings)
