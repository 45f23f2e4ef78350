"""Who runs a plan. The protocol has two halves: the forward pass, and the sampling that may have to wait for grammar masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.core.plan import Plan, StepOutput

Outcome = tuple[bool, StepOutput | str]  # (True, what the step gave), or (False, text of what it raised)


class ExecutorDead(RuntimeError):
    """No further step can run: a worker or its device is gone. The text is the worker's own first error.

    With `consequence` another has ended first, which says itself why.
    """

    def __init__(self, text: str, consequence: bool = False) -> None:
        super().__init__(text)
        self.consequence = consequence


class PartyLost(Exception):
    """A worker of a party has ended, or its host; `Party.word` says why."""


class OrderFailed(RuntimeError):
    """What was ordered could not be done; the workers go on as they are. The text is the first failing worker's error."""


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

    def order(self, name: str, *args: Any) -> None:
        """Have every rank do something beside plans (`Worker.orders`); returns when all have. Only while nothing is in flight.

        Raises `OrderFailed`, when some of them may have done it."""
        ...

    def check(self) -> None:
        """Raise `ExecutorDead` if a worker has ended; asked now and then while there is nothing to run."""
        ...

    def close(self) -> None:
        """End workers and give the device memory back."""
        ...


def outcome_bytes(outcome: Outcome) -> bytes:
    """For a process that may be on another host, so not by pickle."""
    import msgspec  # an engine in one process does without it

    return msgspec.msgpack.encode(outcome)


def outcome_from(data: bytes) -> Outcome:
    """What `outcome_bytes` made."""
    import msgspec

    return msgspec.msgpack.decode(data, type=Outcome)
