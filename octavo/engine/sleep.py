"""Sleep: an engine without work gives its memory back, and refuses requests until it wakes.

Orders are questions that change something (`octavo.engine.messages.Ask`); each is answered by what keeps it from being done, so nothing is
a success. Several replicas are first paused, all of them, and then put to sleep: those that step together need each other until the last
request of any has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.core.scheduler import Scheduler
from octavo.engine import orders
from octavo.engine.client import ASLEEP
from octavo.engine.grammars import Grammars
from octavo.engine.messages import Outbox
from octavo.types import FinishReason, InvalidRequest, SequenceOutput

PARTS = ("weights", "kv_cache")
BUSY = "busy"  # the complaint of a pause for as long as requests run


class Loop(orders.Loop, Protocol):
    """What is needed of `EngineLoop`."""

    scheduler: Scheduler

    @property
    def outbox(self) -> Outbox: ...

    @property
    def grammars(self) -> Grammars: ...


class Asleep(InvalidRequest):
    """No request runs while the engine sleeps or is about to."""

    def __init__(self) -> None:
        super().__init__("request", "", "")
        self.args = (f"{ASLEEP}: POST /wake_up",)


class Sleep:
    """Whether the engine takes requests, and what of its memory is gone."""

    def __init__(self, loop: Loop) -> None:
        self.level = 0  # 0: awake
        self._missing: set[str] = set()
        self._paused = False
        self._loop = loop

    @property
    def orders(self) -> dict[str, Callable[..., list[str]]]:
        """By name."""
        return {"pause": self.pause, "sleep": self.sleep, "wake": self.wake}

    def check(self) -> None:
        """Raise `Asleep` while no request is taken."""
        if self._paused:
            raise Asleep

    def pause(self, mode: str) -> list[str]:
        """Take no more requests. Those that run are ended (mode "abort") or run on ("wait"); asked again until nobody is busy."""
        self._paused = True
        if mode == "abort":
            self._end_all()
        return [BUSY] if self._loop.scheduler.has_work else []

    def sleep(self, level: int) -> list[str]:
        """After a pause: give the memory back. What was cached is forgotten."""
        if self._loop.scheduler.has_work:
            return [BUSY]
        self._paused = True
        self._loop.scheduler.reset_prefix_cache()
        if failures := orders.order_workers(self._loop, "sleep", level):
            return [f"the engine did not fall asleep: {failures[0]}"]
        self.level, self._missing = max(level, self.level), {*PARTS}
        return []

    def wake(self, parts: Sequence[str] = PARTS) -> list[str]:
        """Bring back weights, KV cache or both. Requests are taken again when nothing is missing."""
        unknown = [part for part in parts if part not in PARTS]
        if unknown:
            return [f"tags = {unknown[0]!r} is not possible: use {' or '.join(PARTS)}"]
        if "weights" in self._missing and "weights" not in parts:
            return ["tags = 'kv_cache' is not possible: wake the weights first, or both"]
        if failures := orders.order_workers(self._loop, "wake", [part for part in PARTS if part in parts]):
            return [f"the engine sleeps on: {failures[0]}"]
        self._missing -= set(parts)
        if not self._missing:
            self._paused, self.level = False, 0
        return []

    def _end_all(self) -> None:
        scheduler = self._loop.scheduler
        self._loop.outbox.send([
            SequenceOutput(request_id, index, finish_reason=FinishReason.ABORT) for request_id, index in scheduler.live
        ])
        scheduler.abort_all()
        self._loop.grammars.forget_all()
