"""How long steps took, the host and the device apart: the last few thousand, always kept, for the cost model to learn from."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from octavo.core.plan import StepShape
from octavo.plan.timing import Timing

KEPT = 8192
COLUMNS = len(StepShape._fields) + 3
LATE_S = 100e-6  # who gets a result sooner than this has not waited for it, ...
LATE_SHARE = 0.05  # ... or sooner than this share of what the host did since the last result: reading takes longer after a long launch
TAIL = 0.1  # share of the time of a launch: a device that has ended sooner after it was kept waiting by the launch


class Launched(NamedTuple):
    """When the host began with a step (with its plan, and before that with the outcome of an earlier one), and when it had launched it."""

    begin_s: float
    end_s: float


class StepLog:
    """A step's device begins when the step before has ended, or with the host's work on it where the device has nothing else to do; so its
    time includes whatever the host did not hide.

    The host sees the end of a step only when it waits for it. If it comes late, because it was launching the next one meanwhile, then all
    that is known of the device's time are bounds, of this step and of the next.

    Steps are rows of plain numbers in memory that is there from the start: objects would make a process grow for hours.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._rows = array("d", bytes(8 * COLUMNS * kept))  # the numbers of a Timing, step n in row n modulo `kept`
        self.num_steps = 0  # ever
        self._since_s: float | None = None  # the end of the step before, or of a rest
        self._host_s = 0.0  # when the host was done with the step before: launched it, or read its result
        self._worked_s = 0.0  # what the host did since the last result, it did until then
        self._free_s = (0.0, 0.0)  # bounds of when the device was done with all that has ended

    def begin(self, now_s: float) -> None:
        """A step is about to be planned."""
        if self._since_s is None:
            self._since_s = self._host_s = now_s
            self._free_s = (now_s, now_s)
        self._worked_s = now_s

    def launched(self, now_s: float) -> Launched:
        """A step was handed to the device. What is returned comes back at its end."""
        found = Launched(self._host_s, now_s)
        self._host_s = self._worked_s = now_s
        return found

    def end(self, shape: StepShape, launched: Launched, now_s: float) -> float:
        """The oldest step's result is there; the seconds since that of the step before."""
        assert self._since_s is not None, "a step begins before it ends"
        earliest_s, latest_s = (max(free_s, launched.begin_s) for free_s in self._free_s)
        launch_s = launched.end_s - launched.begin_s
        late = now_s - self._worked_s < max(LATE_S, LATE_SHARE * (self._worked_s - self._since_s))
        hidden = late or now_s - launched.end_s < TAIL * launch_s
        at = self.num_steps % self._kept * COLUMNS
        bounds = (now_s - earliest_s, 0.0 if hidden else now_s - latest_s)
        self._rows[at : at + COLUMNS] = array("d", (*shape, *bounds, launch_s))
        self._free_s = (earliest_s if late else now_s, now_s)
        self.num_steps += 1
        seconds, self._since_s = now_s - self._since_s, now_s
        self._host_s = now_s
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
        return [Timing.of_row(self._rows[start : start + COLUMNS]) for start in starts]
