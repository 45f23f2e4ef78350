"""What is asked of the settings: limits for latencies, and what is to be as good as can be within them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.config.fields import ConfigError

LIMIT = re.compile(r"(ttft|itl|tpot|e2e)_(mean|p50|p90|p95|p99)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)$")
LIMITS_READ = "limits such as ttft_p99<200ms,itl_p99<50ms: one of ttft, itl, tpot, e2e, with mean, p50, p90, p95 or p99"
LATENCIES = ("ttft", "itl", "e2e")
WAIT_SHARE = 0.2  # of the load's duration: who waits longer for a first token, of 99 in 100, is in a queue that grows without end
CLOSE = 1.03  # two rates, of which one keeps the limits and the other does not, that need no rate between
STEP = 1.2  # between rates, while only one side is known, at least,
FAR = 2.5  # and at most
SLOWEST = 0.1  # share of the first rate below which no rate is tried
Figures = Mapping[str, Any]  # as `summarize` gives them
Play = Callable[[float], Figures]  # of a load at so many requests a second


@dataclass(frozen=True)
class Limit:
    """Of one latency."""

    name: str  # ttft, itl, tpot, e2e
    part: str  # mean, p50 ...
    seconds: float

    def of(self, figures: Figures) -> float:
        """Seconds."""
        return figures[f"{self.name}_s"][self.part]

    def __str__(self) -> str:
        return f"{self.name}_{self.part} < {1000 * self.seconds:g} ms"


@dataclass(frozen=True)
class Slo:
    """All limits together."""

    limits: tuple[Limit, ...] = ()

    @staticmethod
    def read(text: str) -> Slo:
        """`ttft_p99<200ms,itl_p99<50ms`. Raises ConfigError."""
        found: list[Limit] = []
        for part in filter(None, map(str.strip, text.split(","))):
            match = LIMIT.match(part)
            if match is None or float(match[3]) <= 0:
                raise ConfigError("slo", part, LIMITS_READ)
            found.append(Limit(match[1], match[2], float(match[3]) / (1000 if match[4] == "ms" else 1)))
        return Slo(tuple(found))

    def worst(self, figures: Figures) -> float:
        """The largest share of a limit that is used up; over 1 one is missed."""
        if not figures["requests"] or figures["refused"]:
            return math.inf
        return max((limit.of(figures) / limit.seconds for limit in self.limits), default=0.0)

    def bounded(self, duration_s: float) -> Slo:
        """With a limit for first tokens, where none bounds the queue: who cannot keep up with a load shall not count as serving it."""
        if any(limit.name in ("ttft", "e2e") for limit in self.limits):
            return self
        return Slo((*self.limits, Limit("ttft", "p99", WAIT_SHARE * duration_s)))

    def limit_of(self, name: str) -> Limit | None:
        return next((limit for limit in self.limits if limit.name == name), None)

    def __str__(self) -> str:
        return ", ".join(map(str, self.limits)) or "no limit"


@dataclass(frozen=True)
class Score:
    """How well settings do. `value` is what they are compared by: more is better; 0 where no rate kept the limits."""

    value: float
    rate: float  # requests a second at which that is
    probes: tuple[tuple[float, Figures], ...]  # (requests a second, what it was like), in the order of playing

    def gain_over(self, other: Score) -> float:
        """Share by which it is better."""
        return self.value / other.value - 1 if other.value else math.inf if self.value else 0.0


class Objective(Protocol):
    """Measures settings, simulated or real alike."""

    @property
    def unit(self) -> str:
        """Of the score."""
        ...

    def measure(self, play: Play, guess: float, num_probes: int) -> Score:
        """`guess` is a rate to begin with."""
        ...


@dataclass(frozen=True)
class MostRequests:
    """The highest rate of requests at which all limits are kept."""

    slo: Slo
    unit: str = "requests/s within the limits"

    def measure(self, play: Play, guess: float, num_probes: int) -> Score:
        """Rates around the guess until two neighbours are close, of which one keeps the limits and the other does not; the result lies
        between them, where the share of the limits that is used up would be 1."""
        held = missed = None
        probes: list[tuple[float, Figures]] = []
        rate = guess
        while len(probes) < num_probes and rate > SLOWEST * guess:
            figures = play(rate)
            probes.append((rate, figures))
            used = self.slo.worst(figures)
            if used <= 1:
                held = (rate, used)
            else:
                missed = (rate, used)
            if held and missed:
                if missed[0] / held[0] < CLOSE:
                    break
                rate = held[0] * (missed[0] / held[0]) ** min(0.8, max(0.2, _crossing(held[1], missed[1])))
            else:
                rate = rate * _stride(1 / used if used else FAR) if held else rate / _stride(used)
        found = 0.0
        if held:
            found = held[0] * (missed[0] / held[0]) ** _crossing(held[1], missed[1]) if missed else held[0]
        return Score(found, found, tuple(probes))


def _stride(off: float) -> float:
    """To the next rate, where the share of the limits that is used up is `off` times more, or less, than all."""
    return min(FAR, max(STEP, off**0.5))


def _crossing(held: float, missed: float) -> float:
    """Where between two rates, in the logarithm, a share grows from `held` to `missed` through 1; a miss by far says little of where."""
    low, high = math.log(max(held, 0.05)), math.log(min(max(missed, 1.001), 20.0))
    return -low / (high - low)


@dataclass(frozen=True)
class LowestLatency:
    """The lowest 99th percentile of one latency at a given rate, with all limits kept."""

    name: str
    rate: float
    slo: Slo
    unit: str = "1/s, the inverse of the 99th percentile"

    def measure(self, play: Play, guess: float, num_probes: int) -> Score:
        figures = play(self.rate)
        seconds = figures[f"{self.name}_s"]["p99"]
        kept = self.slo.worst(figures) <= 1
        return Score(1 / seconds if kept and seconds else 0.0, self.rate, ((self.rate, figures),))


@dataclass(frozen=True)
class MostTokens:
    """Output tokens a second when everything comes at once: nobody waits."""

    unit: str = "output tokens/s"

    def measure(self, play: Play, guess: float, num_probes: int) -> Score:
        figures = play(math.inf)
        return Score(figures["output_tokens_per_s"], figures["requests_per_s"], ((math.inf, figures),))


def choose(name: str, slo: Slo, rate: float | None, duration_s: float) -> Objective:
    """`throughput`, or one of `LATENCIES`, which needs a rate. Raises ConfigError."""
    if name == "throughput":
        return MostRequests(slo.bounded(duration_s)) if slo.limits else MostTokens()
    if rate is None:
        raise ConfigError("rate", None, f"--objective {name} is measured at one rate: give requests a second")
    return LowestLatency(name, rate, slo)


def names() -> Sequence[str]:
    return ("throughput", *LATENCIES)
