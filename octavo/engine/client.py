"""The front's view of an engine: put requests in, read news out. The server and `AsyncLLM` know only this protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.types import FinishReason, Request, SequenceOutput

ASLEEP = "the engine is asleep"  # how the reason of a refused request begins


class EngineDead(RuntimeError):
    """The engine process has ended; the text is its own first error."""


@dataclass(frozen=True)
class EngineStats:
    """A reading of the engine's gauges and running counters. Counters only grow."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0  # 0 to 1
    num_preemptions: int = 0
    prefix_cache_queries: int = 0  # tokens looked up
    prefix_cache_hits: int = 0  # tokens found
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_steps: int = 0
    steps_ended_at_s: float = 0.0  # engine's monotonic clock, when the last step ended
    now_s: float = 0.0  # the same clock at the reading
    expert_tokens: Mapping[int, Mapping[int, int]] = field(default_factory=dict[int, Mapping[int, int]])  # by layer and expert
    prompt_steps: Mapping[str, float] = field(default_factory=dict[str, float])  # as `LearnedCosts.prompt_steps`
    counters: Mapping[str, float] = field(default_factory=dict[str, float])  # further counts by name (evictions, failed steps ...)
    histograms: Mapping[str, list[tuple[float, int]]] = field(default_factory=dict[str, list[tuple[float, int]]])  # (upper bound, count)


MEANS, LARGEST = frozenset({"kv_cache_usage", "full_s", "least_s"}), frozenset({"steps_ended_at_s", "now_s", "longest_step_seconds"})


def together(readings: Sequence[Any], name: str = "") -> Any:
    """What several engines answered to one question, as one answer: numbers add up, mappings go by name and rows by place."""
    first = readings[0]
    if isinstance(first, EngineStats):
        return EngineStats(**together([vars(one) for one in readings]))
    if isinstance(first, Mapping):
        names = dict.fromkeys(key for one in readings for key in one)
        return {key: together([one[key] for one in readings if key in one], key) for key in names}
    if isinstance(first, bool):
        return all(readings)
    if isinstance(first, (int, float)):
        total = max(readings) if name in LARGEST else sum(readings)
        return total / len(readings) if name in MEANS else total
    if name and isinstance(first, list):  # a histogram: (upper bound, count)
        return [(rows[0][0], sum(row[1] for row in rows)) for rows in zip(*readings, strict=True)]
    return [item for one in readings for item in one]


class Reader(Protocol):
    """Takes the news of one request, by calls from the event loop. No call raises, since others' news wait behind it."""

    def take(self, news: SequenceOutput) -> None: ...

    def taker(self, index: int) -> Callable[[int], None]:
        """Who takes one more token of it and nothing else, as most news are: the same as `take`, without an object for it."""
        ...

    def lost(self, reason: str) -> None:
        """The engine has ended; nothing more comes."""
        ...


class AsyncEngine(Protocol):
    """An engine seen from an event loop. Ids are the front's and unique for its life."""

    def add(self, request: Request, reader: Reader) -> None:
        """Start the request. Its news goes to the reader until every continuation has ended, or until it is aborted.

        By calls rather than by an iterator: a task that wakes for every token costs more than the token's text. Raises `EngineDead`.
        """
        ...

    def finish(self, request_id: str, index: int, reason: FinishReason, num_tokens: int) -> None:
        """The front ended a continuation itself after its first `num_tokens` tokens (a stop string); no news of it follow."""
        ...

    def abort(self, request_id: str) -> None:
        """Nobody wants the request any more; no news of it follow."""
        ...

    async def stats(self) -> list[EngineStats]:
        """A reading of each engine behind this one."""
        ...

    async def advice(self) -> list[dict[str, Any]]:
        """What holds the engine back, as `octavo.plan.advice.Finding` in plain data."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget cached blocks; False when some are in use."""
        ...

    async def order(self, name: str, *args: Any) -> list[str]:
        """Have every engine do something beside requests, by the names in `octavo.engine.sleep`. The complaints of those that did not."""
        ...

    @property
    def doors(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Where other fronts find the engines, and what each said of itself: for `octavo.engine.replicas.connect`."""
        ...

    def lose(self, reason: str) -> None:
        """It has ended, or is ended now if it was started here; this is what its requests are told."""
        ...

    @property
    def dead(self) -> str | None:
        """The first error of an engine that has ended, else None."""
        ...

    async def close(self, drain_s: float = 0.0) -> None: ...
