"""Who runs a plan. The protocol has two halves: the forward pass, and the sampling that may have to wait for grammar masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.core.plan import Plan, StepOutput


class ExecutorDead(RuntimeError):
    """No further step can run: a worker or its device is gone. The text is the worker's own first error."""


class StepFuture(Protocol):
    """A step under way. `result()` blocks until its output is on the host; it raises what the step raised."""

    def result(self) -> StepOutput: ...


class Executor(Protocol):
    """The ranks that run plans."""

    def submit(self, plan: Plan) -> StepFuture:
        """Start the step on every rank, in submission order; for a plan with `masked` slices only its forward half."""
        ...

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> None:
        """Second half of a plan with `masked` slices: `masks` holds packed token bits per masked slice, in `plan.masked` order, or
        None for one whose tokens need none."""
        ...

    def check(self) -> None:
        """Raise `ExecutorDead` if a worker has ended; asked now and then while there is nothing to run."""
        ...

    def close(self) -> None:
        """End workers and give the device memory back."""
        ...
