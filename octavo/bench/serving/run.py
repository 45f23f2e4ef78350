"""Drives a load against a server: every request at its time, whatever became of those before it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from octavo.bench.serving.client import Outcome
from octavo.bench.serving.http import Clock
from octavo.simulate.load import Arrival, Load

Prepared = TypeVar("Prepared")
AHEAD = 1024  # requests made ready before the first is sent; later ones while others run


@dataclass(frozen=True)
class Run:
    """All that came of a load, and what the client itself took."""

    begin_s: float
    seconds: float
    sent: tuple[tuple[Arrival, Outcome], ...]  # in the order of their ends
    cpu_s: float

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for _, outcome in self.sent]


async def drive(
    load: Load,
    num_requests: int,
    prepare: Callable[[Arrival], Prepared],
    send: Callable[[Prepared, float], Awaitable[Outcome]],
    clock: Clock,
    max_concurrency: int | None = None,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """Send the load's first `num_requests` first arrivals, and what follows from them.

    `prepare` makes a request ready before it is due; `send(prepared, due_s)` sends it at once. Above `max_concurrency` requests wait
    for each other.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    sent: list[tuple[Arrival, Outcome]] = []

    async def follow(arrival: Arrival, prepared: Prepared) -> None:
        """A request and those that follow from its end."""
        following: Arrival | None = arrival
        while following is not None:
            arrival = following
            async with gate:
                # Waiting for the gate is asked for, and no lateness.
                outcome = await send(prepared, clock() if max_concurrency else begin_s + arrival.at_s)
            sent.append((arrival, outcome))
            on_end(outcome)
            following = load.after(arrival, clock() - begin_s)
            if following is not None:
                prepared = prepare(following)
                await _until(begin_s + following.at_s, clock)

    first = islice(load.first(), num_requests)
    ready = [(arrival, prepare(arrival)) for arrival in islice(first, AHEAD)]
    begin_cpu_s, begin_s = _cpu_s(), clock()
    async with asyncio.TaskGroup() as group:
        for arrival, prepared in chain(ready, ((later, prepare(later)) for later in first)):
            await _until(begin_s + arrival.at_s, clock)
            group.create_task(follow(arrival, prepared))
    return Run(begin_s, clock() - begin_s, tuple(sent), _cpu_s() - begin_cpu_s)


async def _until(at_s: float, clock: Clock) -> None:
    await asyncio.sleep(max(0.0, at_s - clock()))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
