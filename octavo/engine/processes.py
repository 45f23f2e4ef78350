"""Workers in processes of their own, on this host and on others: plans go out to every rank, the outcome comes back from the last one.

A rank that ends takes the group down within moments: whoever waits for a step gets `ExecutorDead` with that rank's own first error.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection, Sequence
from multiprocessing.connection import wait
from typing import Any, Protocol

from octavo import env
from octavo.core.plan import Plan, StepOutput
from octavo.engine.executor import ExecutorDead, OrderFailed, Outcome, PartyLost, StepFuture, outcome_from
from octavo.engine.process import Word


class StepFailed(RuntimeError):
    """A step raised in its worker, which goes on."""


class Party(Protocol):
    """The workers of one host, here (`octavo.engine.workers`) or there (`octavo.cluster.far`)."""

    @property
    def told(self) -> list[Any] | None:
        """What each worker tells of itself, once all have started."""
        ...

    @property
    def doors(self) -> Sequence[Any]:
        """What can be waited on; whoever finds one of them ready calls `hear`."""
        ...

    def tell(self, data: bytes) -> None:
        """Give all workers a message. Raises `PartyLost`."""
        ...

    def hear(self, ready: Collection[Any]) -> Sequence[bytes]:
        """The outcomes that came in by the doors that are ready. Raises `PartyLost` when a worker has ended."""
        ...

    def word(self) -> Word | None:
        """The first error here, if anybody has ended or is about to."""
        ...

    def progress(self) -> str:
        """The host, and how far each of its workers is."""
        ...

    def close(self, why: str | None = None) -> None:
        """End the workers; `why` is the error that ends all."""
        ...


class ProcessExecutor:
    """All ranks, in the order of their parties; made when all have started."""

    def __init__(self, parties: Sequence[Party], keep: object = None) -> None:
        """`keep` lives as long as the workers."""
        self._keep = keep
        self.parties = parties
        self._pending: deque[RemoteStep] = deque()
        while any(party.told is None for party in parties):
            self._hear(None)
        self.told = [told for party in parties for told in party.told or ()]  # what each worker tells of itself, by rank

    def submit(self, plan: Plan) -> StepFuture:
        self._tell(("forward" if plan.masked else "step", plan, None))
        step = RemoteStep(self)
        self._pending.append(step)
        return step

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> None:
        self._tell(("sample", plan, masks))

    def order(self, name: str, *args: Any) -> None:
        assert not self._pending, "orders are given between steps"
        self._tell(("order", name, args))
        outcomes: list[Outcome] = []
        while len(outcomes) < len(self.told):
            outcomes += map(outcome_from, self._hear(None))
        failures = [word for good, word in outcomes if not good]
        if failures:
            raise OrderFailed(failures[0])

    def check(self) -> None:
        self._hear_from(wait(self._doors(), timeout=0))

    def close(self) -> None:
        for party in self.parties:
            party.close()

    def receive(self, step: RemoteStep) -> Outcome:
        """The outcome of a step; those of earlier steps come first and are kept for them."""
        while step.outcome is None:
            for data in self._hear(env.STEP_TIMEOUT.get()):
                self._pending.popleft().outcome = outcome_from(data)
        return step.outcome

    def _tell(self, message: tuple[str, Any, Any]) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            for party in self.parties:
                party.tell(data)
        except PartyLost:
            raise self._dead() from None

    def _doors(self) -> list[Any]:
        return [door for party in self.parties for door in party.doors]

    def _hear(self, timeout_s: float | None) -> list[bytes]:
        """What comes next from any party: outcomes, or nothing of which more need be said."""
        ready = wait(self._doors(), timeout_s)
        if not ready:
            raise self._stuck(timeout_s)
        return self._hear_from(ready)

    def _hear_from(self, ready: Collection[Any]) -> list[bytes]:
        try:
            return [outcome for party in self.parties for outcome in party.hear(ready)]
        except PartyLost:
            raise self._dead() from None

    def _stuck(self, timeout_s: float | None) -> ExecutorDead:
        """No outcome came for so long: how far each rank is."""
        error = f"no outcome within {timeout_s:g} s {'; '.join(party.progress() for party in self.parties)}"
        return self._end(error)

    def _dead(self) -> ExecutorDead:
        words = [word for party in self.parties if (word := party.word()) is not None]
        first = min(words)
        return self._end(first.text, first.consequence)

    def _end(self, error: str, consequence: bool = False) -> ExecutorDead:
        for party in self.parties:
            party.close(error)
        return ExecutorDead(error, consequence)


class RemoteStep:
    """A step under way in other processes."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self._executor = executor
        self.outcome: Outcome | None = None

    def result(self) -> StepOutput:
        good, value = self._executor.receive(self)
        if not good:
            raise StepFailed(value)
        assert isinstance(value, StepOutput)
        return value
