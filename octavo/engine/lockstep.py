"""Steps of an engine among others: alone, or together with replicas that hold a part of its experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.cluster.coordinator import Seat
from octavo.core.lockstep import Intent, agree
from octavo.core.plan import Plan
from octavo.engine.executor import ExecutorDead


class Others(Protocol):
    """What the loop asks of the replicas beside it."""

    @property
    def wakes(self) -> Sequence[int]:
        """Descriptors that can be read when this engine is wanted while it has nothing to do."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether the others take steps, in which this engine must join."""
        ...

    def together(self, plan: Plan | None) -> Plan | None:
        """The step that this engine takes: its own plan as all agreed on it, an empty one among others' work, or none."""
        ...

    def failed(self, error: Exception) -> None:
        """A step of this engine raised. Raises `ExecutorDead` where the others cannot go on without it, or it without them."""
        ...


class Alone:
    """No others."""

    wakes: Sequence[int] = ()
    waiting = False

    def together(self, plan: Plan | None) -> Plan | None:
        return plan

    def failed(self, error: Exception) -> None:
        pass


class LockStep:
    """Replicas that take each step together (`octavo.core.lockstep`). Between waves nobody waits for anybody."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._running = False

    @property
    def wakes(self) -> Sequence[int]:
        return (self._seat.fd,)

    @property
    def waiting(self) -> bool:
        self._running = self._running or self._seat.called()
        return self._running

    def together(self, plan: Plan | None) -> Plan | None:
        if plan is None and not self.waiting:
            return None
        agreement = agree(self._seat.speak(Intent(plan.num_tokens if plan else 0, graph=False)))
        self._running = agreement is not None
        return None if agreement is None else (plan or Plan(0))._replace(num_tokens_all=agreement.num_tokens)

    def failed(self, error: Exception) -> None:
        """The others are in the middle of it: nobody can go on. What only lost another says what the coordinator knows of that one."""
        consequence = getattr(error, "consequence", False)
        own = str(error) if isinstance(error, ExecutorDead) else f"{type(error).__name__}: {error}"
        raise ExecutorDead((self._seat.lost() if consequence else None) or own, consequence) from error
