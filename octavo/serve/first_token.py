"""How long a new request would wait for its first token: by the engine's cost model where it has one, else by what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from octavo.engine.client import EngineStats

MEMORY_S = 10.0  # of waiting, after which what was measured weighs a third
PRIOR_S = 0.5  # what the engine expects counts as much as so many seconds of measuring
KEPT = 0.9  # of what was known of the prefix cache, with each reading of the engine


class FirstTokenEstimate(Protocol):
    """Says how long a new request would wait for its first token. It is told all that happens to the queue."""

    def changed(self, now_s: float, num_waiting: int, num_read: int = 0) -> None:
        """From now on so many requests wait; a prompt of `num_read` tokens got its first token."""
        ...

    def heard(self, stats: EngineStats) -> None:
        """A reading of the engine."""
        ...

    def seconds(self, num_ahead: int, num_own: int) -> float | None:
        """For a prompt of `num_own` tokens behind `num_ahead` tokens of prompts that wait; None while nothing is known."""
        ...


class MeasuredRate:
    """The tokens ahead over the rate at which prompts got their first tokens while some waited; then its own at the engine's rate.

    What is measured is the queue's end, so it holds whatever the queue waits for: the reading of prompts, rows or memory.
    """

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0  # of the measured past, later parts weighing more
        self._own_rate = 0.0  # tokens/s of prompts by the engine's cost model
        self._since_s: float | None = None  # while some wait

    def changed(self, now_s: float, num_waiting: int, num_read: int = 0) -> None:
        if self._since_s is not None:
            passed_s = now_s - self._since_s
            kept = math.exp(-passed_s / MEMORY_S)
            self._tokens = self._tokens * kept + num_read
            self._seconds = self._seconds * kept + passed_s
        self._since_s = now_s if num_waiting else None

    def heard(self, stats: EngineStats) -> None:
        rate = stats.counters.get("prompt_tokens_per_second", 0.0)
        if rate > 0 and not self._own_rate:
            self._tokens, self._seconds = self._tokens + PRIOR_S * rate, self._seconds + PRIOR_S
        self._own_rate = rate

    def seconds(self, num_ahead: int, num_own: int) -> float | None:
        if not self._own_rate:
            return None
        if not num_ahead:
            return num_own / self._own_rate
        return num_ahead * self._seconds / max(self._tokens, 1e-9) + num_own / self._own_rate


class PredictedSteps:
    """The steps that read the prompts ahead and its own, each beside the sequences that decode, by the engine's cost model.

    The engine tells what such steps take: the full one, the one with a single prompt token, between them a line, and attention apart from
    that. Whoever has been read decodes: takes a token of each further step, and reads its context; on average half of those that wait do.
    What lacks a row or memory waits until others end, of which no cost model knows: that takes no less than measured. While the engine
    knows no costs, what is measured is all.
    """

    def __init__(self) -> None:
        self._measured = MeasuredRate()
        self._steps: Mapping[str, float] = {}
        self._num_waiting = 0
        self._queries = self._hits = 0  # of the prefix cache, at the last reading
        self._looked_up = self._found = 0.0  # tokens, later ones weighing more

    def changed(self, now_s: float, num_waiting: int, num_read: int = 0) -> None:
        self._measured.changed(now_s, num_waiting, num_read)
        self._num_waiting = num_waiting

    def heard(self, stats: EngineStats) -> None:
        self._measured.heard(stats)
        self._steps = stats.prompt_steps
        self._looked_up = self._looked_up * KEPT + max(0, stats.prefix_cache_queries - self._queries)
        self._found = self._found * KEPT + max(0, stats.prefix_cache_hits - self._hits)
        self._queries, self._hits = stats.prefix_cache_queries, stats.prefix_cache_hits

    def seconds(self, num_ahead: int, num_own: int) -> float | None:
        measured_s = self._measured.seconds(num_ahead, num_own)
        if not self._steps:
            return measured_s
        predicted_s = self._predicted_s(num_ahead, num_own)
        fit = self._num_waiting < self._steps["rows"] and num_ahead + num_own <= self._steps["cache_tokens"]
        return predicted_s if fit or measured_s is None else max(predicted_s, measured_s)

    def _predicted_s(self, num_ahead: int, num_own: int) -> float:
        steps, num_waiting = self._steps, self._num_waiting
        computed = 1 - self._found / self._looked_up if self._looked_up else 1.0
        room = max(1.0, steps["tokens"] - num_waiting / 2)
        num_full, rest = divmod((num_ahead + num_own) * computed, room)
        found_s = num_full * (steps["full_s"] + num_ahead / 2 / steps["context_per_s"])
        if rest:
            found_s += steps["least_s"] + (steps["full_s"] - steps["least_s"]) * rest / room
        pairs = (num_ahead**2 / max(1, num_waiting) + num_own**2) / 2  # prompts ahead as if of one length
        return found_s + computed * pairs / steps["pairs_per_s"]
