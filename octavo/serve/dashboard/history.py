"""The last quarter of an hour, a reading a second, so that a page shows it from the moment it is opened.

Readings are taken only while somebody looks, and for about as long after. They are made of what `/metrics` tells, in finer buckets.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from octavo.engine.client import EngineStats
from octavo.metrics import FrontMetrics
from octavo.serve.front import Front

EVERY_S = 1.0
KEPT = 900  # readings
LINGER_S = 60.0  # how long at least readings go on when nobody looks
Counts = dict[int, int]  # by place of the bucket; only those that are not 0

ENGINE: dict[str, Callable[[EngineStats], float]] = {
    "running": lambda stats: stats.num_requests_running,
    "waiting": lambda stats: stats.num_requests_waiting,
    "kv": lambda stats: stats.kv_cache_usage,
    "steps": lambda stats: stats.num_steps,
    "preemptions": lambda stats: stats.num_preemptions,
    "queries": lambda stats: stats.prefix_cache_queries,
    "hits": lambda stats: stats.prefix_cache_hits,
    "evictions": lambda stats: stats.counters.get("kv_evictions", 0),
    "kept": lambda stats: stats.counters.get("kv_cached_blocks", 0),
    "ooms": lambda stats: stats.counters.get("oom_events", 0),
    "failed_steps": lambda stats: stats.counters.get("failed_steps", 0),
}
FRONT: dict[str, Callable[[FrontMetrics], float]] = {
    "prompt": lambda metrics: metrics.prompt_tokens,
    "cached": lambda metrics: metrics.prompt_tokens_cached,
    "generated": lambda metrics: metrics.generation_tokens,
    "started": lambda metrics: metrics.num_started,
    "stop": lambda metrics: metrics.finished["stop"],
    "length": lambda metrics: metrics.finished["length"],
    "abort": lambda metrics: metrics.finished["abort"],
    "error": lambda metrics: metrics.finished["error"],
}
NAMES = (*ENGINE, *FRONT)


class Sample(NamedTuple):
    """One reading: gauges and running totals in the order of `NAMES`, and what was counted since the reading before."""

    number: int
    at_s: float  # since 1970
    values: list[float]
    ttft: Counts
    itl: Counts
    batch: Counts


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never jump: the machine's time now, and from then on a clock that nobody sets."""
    offset_s = time.time() - time.monotonic()
    return lambda: offset_s + time.monotonic()


class History:
    """Readings of one front."""

    def __init__(self, front: Front, every_s: float = EVERY_S, kept: int = KEPT, clock: Callable[[], float] | None = None) -> None:
        self.samples: deque[Sample] = deque(maxlen=kept)
        self._front = front
        self._every_s = every_s
        self._clock = clock or steady_clock()
        self._numbers = itertools.count(1)
        self._before: dict[str, list[int]] = {}  # counts of the last reading
        self._asked_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def since(self, number: int) -> list[Sample]:
        """The readings after that of this number. The first call takes one, and begins to take more."""
        self._asked_s = self._clock()
        if self._task is None or self._task.done():
            await self.read()
            self._task = asyncio.create_task(self._keep_reading())
        return [sample for sample in self.samples if sample.number > number]

    async def read(self) -> None:
        """Take a reading now."""
        await self._front.read_stats()
        metrics = self._front.metrics
        stats = metrics.stats
        values = [read(stats) for read in ENGINE.values()] + [read(metrics) for read in FRONT.values()]
        batch = [count for _, count in stats.histograms.get("batch_size", ())]
        new = [
            self._new("ttft", metrics.time_to_first_token.counts),
            self._new("itl", metrics.inter_token_latency.counts),
            self._new("batch", batch),
        ]
        self.samples.append(Sample(next(self._numbers), self._clock(), values, *new))

    def bounds(self) -> Mapping[str, Sequence[float]]:
        """Upper bounds of the buckets; one more follows that has none."""
        metrics = self._front.metrics
        batch = [bound for bound, _ in metrics.stats.histograms.get("batch_size", ())]
        return {"ttft": metrics.time_to_first_token.bounds, "itl": metrics.inter_token_latency.bounds, "batch": batch[:-1]}

    def _new(self, name: str, counts: Sequence[int]) -> Counts:
        """What was counted since the last reading; nothing at the first, when nobody knows how old the counts are."""
        before = self._before.get(name, counts)
        self._before[name] = list(counts)
        return {place: now - then for place, (now, then) in enumerate(zip(counts, before)) if now != then}

    async def _keep_reading(self) -> None:
        while self._clock() - self._asked_s < len(self.samples) * self._every_s + LINGER_S:
            await asyncio.sleep(self._every_s)
            await self.read()
        self.samples.clear()
        self._before.clear()
