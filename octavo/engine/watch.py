"""What the last minute was like, for advice: sums over stretches of some seconds, always kept."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from octavo.core.plan import StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.costs import LearnedCosts
from octavo.plan.advice import FULL, Finding, Window, advise

log = logging.getLogger(__name__)
STRETCH_S, NUM_STRETCHES = 10.0, 6
COUNTED = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
MISSES = "prefix_misses_"

PREEMPTED = (
    "%d times a sequence was preempted and is computed again, as the KV cache is full (now %d run, %d wait). More memory helps "
    "(--gpu-memory-utilization, --kv-cache-memory-bytes; on CPU OCTAVO_CPU_KVCACHE_SPACE), or fewer at once (--max-num-seqs)"
)


class Watch:
    """Looks on after each step."""

    def __init__(self, costs: LearnedCosts | None, now_s: float) -> None:
        self._costs = costs
        self._begin_s = now_s
        self._sums: dict[str, float] = defaultdict(float)  # of the stretch under way
        self._most_kv = 0.0
        self._past: deque[tuple[float, dict[str, float], float]] = deque(maxlen=NUM_STRETCHES)  # (seconds, sums, most KV)
        self._before: Mapping[str, float] = {}
        self._told: tuple[str, ...] = ()
        self._warn_at = 1  # preemptions

    def step(self, scheduler: Scheduler, shape: StepShape, seconds: float, now_s: float) -> None:
        """A step of this shape has ended, which took so long."""
        sums, kv, waiting, running = self._sums, scheduler.cache.usage, len(scheduler.waiting), len(scheduler.running)
        sums["busy_s"] += seconds
        sums["num_steps"] += 1
        sums["running"] += seconds * running
        if waiting:
            sums["waiting_s"] += seconds
            sums["waiting"] += seconds * waiting
            sums["full_steps"] += shape.num_tokens >= FULL * scheduler.settings.max_num_batched_tokens
            sums["kv_full_s"] += seconds * (kv >= FULL)
            sums["rows_full_s"] += seconds * (running >= scheduler.settings.max_num_seqs)
        if kv > self._most_kv:
            self._most_kv = kv
        if self._costs is not None and self._costs.model.measured:
            sums["predicted_s"] += self._costs.model.seconds(shape)
        if now_s - self._begin_s >= STRETCH_S:
            self._close(scheduler, now_s)
            self._tell(scheduler)
        if scheduler.num_preemptions >= self._warn_at:  # the first, and whenever there are twice as many
            self._warn_at = 2 * scheduler.num_preemptions
            log.warning(PREEMPTED, scheduler.num_preemptions, running, waiting)

    def window(self, scheduler: Scheduler, now_s: float) -> Window:
        """The last minute, or what there is of it."""
        if now_s - self._begin_s >= STRETCH_S:
            self._close(scheduler, now_s)
        seconds = sum(one for one, _, _ in self._past)
        total: dict[str, float] = defaultdict(float)
        for name, value in (entry for _, sums, _ in self._past for entry in sums.items()):
            total[name] += value
        busy_s = total["busy_s"] or 1.0
        misses = {name.removeprefix(MISSES): int(count) for name, count in total.items() if name.startswith(MISSES)}
        most_kv = max((most for _, _, most in self._past), default=0.0)
        preemptions, queries, hits = (int(total[name]) for name in COUNTED)
        return Window(
            seconds, total["busy_s"], int(total["num_steps"]), total["predicted_s"], int(total["full_steps"]), total["kv_full_s"],
            total["rows_full_s"], total["waiting_s"], most_kv, total["waiting"] / busy_s, total["running"] / busy_s,
            preemptions, queries, hits, misses,
        )  # fmt: skip

    def findings(self, scheduler: Scheduler, now_s: float) -> list[dict[str, Any]]:
        """As plain data."""
        return [asdict(finding) for finding in advise(self.window(scheduler, now_s), scheduler.settings)]

    def _close(self, scheduler: Scheduler, now_s: float) -> None:
        stats = scheduler.stats()
        counted = {name: value for name, value in stats.items() if name in COUNTED or name.startswith(MISSES)}
        for name, value in counted.items():
            self._sums[name] += int(value - self._before.get(name, 0))
        self._before = counted
        self._past.append((now_s - self._begin_s, self._sums, self._most_kv))
        self._sums, self._most_kv, self._begin_s = defaultdict(float), scheduler.cache.usage, now_s

    def _tell(self, scheduler: Scheduler) -> None:
        """In the log, when something else than before is found."""
        found: list[Finding] = advise(self.window(scheduler, self._begin_s), scheduler.settings)
        kinds = tuple(finding.kind for finding in found)
        if kinds != self._told:
            self._told = kinds
            for finding in found:
                log.info("advice: %s: %s. %s", finding.kind, finding.evidence, finding.advice)
