"""A step as it was measured: what it was, and the bounds between which its device's time lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.plan import StepShape


class Timing(NamedTuple):
    """A step as the engine measured it; its device took no less than `least_s` and no more than `seconds`."""

    shape: StepShape
    seconds: float
    least_s: float  # equal to `seconds` where the host saw the step begin and end
    launch_s: float  # of the host, from the last result, or launch, to having launched this step

    @staticmethod
    def exact(shape: StepShape, device_s: float, launch_s: float = 0.0) -> Timing:
        return Timing(shape, device_s, device_s, launch_s)

    def device_bounds(self, on_host: bool) -> tuple[float, float]:
        """Of the device's time; where it is the host itself, the time that this took."""
        return (self.launch_s, self.launch_s) if on_host else (self.least_s, self.seconds)

    @property
    def row(self) -> tuple[float, ...]:
        """Plain numbers, for a file."""
        return (*self.shape, *(round(seconds, 7) for seconds in self[1:]))

    @staticmethod
    def of_row(row: Sequence[float]) -> Timing:
        """Raises ValueError for what is none."""
        size = len(StepShape._fields)
        if len(row) != size + 3:
            raise ValueError(f"a step has {size + 3} numbers, not {len(row)}: measure anew")
        return Timing(StepShape(*map(int, row[:size])), *row[size:])
