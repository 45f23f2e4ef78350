"""Whether the engine gets on with its work, as a front sees it: apart from whether it lives, and from whether requests are taken.

The engine answers questions between two steps. So a question that is open says that a step is under way, and for how long; an answer says
how many steps have ended. The time comes from a clock that never jumps, and time for which this process was itself held up does not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from octavo.engine.client import AsyncEngine, EngineDead, EngineStats, together

log = logging.getLogger("octavo.serve")
LOOK_EVERY_S = 0.5
MOST_COUNTED_S = 4 * LOOK_EVERY_S  # of the time between two looks; for the rest of it this process did not run
SLOWNESS = 3.0  # a step may take this many times as long as the longest that the engine expects


class Progress:
    """Counts the seconds in which requests were there and no step ended. `limit_s` are too many, unless steps may take as long."""

    def __init__(self, limit_s: float) -> None:
        self.stalled_s = 0.0
        self.num_steps = 0  # ended, as the engine said last
        self.in_step = False
        self._limit_s = limit_s
        self._longest_step_s = 0.0  # as the engine expects it
        self._looked_s: float | None = None
        self._told = False

    @property
    def allowed_s(self) -> float:
        return max(self._limit_s, SLOWNESS * self._longest_step_s)

    @property
    def stalled(self) -> str | None:
        """Why the engine does not get on; None while it does, or has nothing to do."""
        if self.stalled_s < self.allowed_s:
            return None
        doing = "it is in the middle of one" if self.in_step else "it answers and begins none"
        return f"no step of the engine has ended for {self.stalled_s:.1f} s while requests wait; {self.allowed_s:g} s are allowed; {doing}"

    def facts(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "stalled_s": round(self.stalled_s, 3), "allowed_s": self.allowed_s}

    def heard(self, stats: EngineStats) -> None:
        """The engine has answered."""
        self._longest_step_s = stats.counters.get("longest_step_seconds", 0.0)
        if stats.num_steps != self.num_steps:
            self.num_steps, self.stalled_s = stats.num_steps, 0.0

    def look(self, now_s: float, *, busy: bool, in_step: bool) -> None:
        """Called regularly, with whether there are requests and whether the engine owes an answer."""
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, MOST_COUNTED_S)
        self._looked_s = now_s
        self.in_step = in_step
        self.stalled_s = self.stalled_s + passed_s if busy else 0.0
        reason = self.stalled
        if (reason is not None) != self._told:
            self._told = reason is not None
            log.warning("the engine gets on again") if reason is None else log.error("not ready: %s", reason)


async def keep_looking(
    progress: Progress, engine: AsyncEngine, busy: Callable[[], bool], clock: Callable[[], float], heard: Callable[[EngineStats], None]
) -> None:
    """Look until cancelled. The engine is asked one thing at a time, and, but for the first time, nothing while there is nothing to do."""
    asked: asyncio.Task[list[EngineStats]] | None = None if engine.dead else asyncio.ensure_future(engine.stats())
    try:
        while True:
            if asked is not None and asked.done():
                if not isinstance(error := asked.exception(), EngineDead):
                    if error is not None:
                        raise error
                    heard(together(asked.result()))
                asked = None
            progress.look(clock(), busy=busy(), in_step=asked is not None)
            if asked is None and busy() and engine.dead is None:
                asked = asyncio.ensure_future(engine.stats())
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if asked is not None:
            asked.cancel()
