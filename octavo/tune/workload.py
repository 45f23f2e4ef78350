"""The load that settings are tuned for: one of those named here, kinds of requests, or a recorded trace; at any rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.config.fields import ConfigError
from octavo.simulate.load import Kind, Length, Load, Synthetic, Trace

AT_ONCE = {"cuda": 512, "cpu": 48}  # requests, where all come at once
SMALLER_ON_CPU = 16  # lengths are divided by this
NAMED = {
    "chat": Synthetic((Kind((32, 512), (32, 256)),), turns=2, think_s=0.5, shared_len=128),
    "batch": Synthetic((Kind((256, 1024), (64, 256)),)),
    "long-context": Synthetic((Kind((4096, 16384), (128, 256)),)),
    "mixed": Synthetic((Kind(4096, 256, 0.5), Kind(128, 256, 0.5))),
}
READ = f"use {', '.join(NAMED)}, kinds such as 0.5:4096/256,0.5:128/256 (share:input/output), or a file of a trace (docs/simulate.md)"


@dataclass(frozen=True)
class Workload:
    """`at(rate, duration_s)` gives the load with so many requests a second; `inf`: all of them at once."""

    name: str
    at: Callable[[float, float], Load]
    longest: int  # tokens of prompt and output
    rate: float | None = None  # of a trace, as it was recorded


def of_one(load: Load, num_replicas: int) -> Load:
    """What one of so many replicas gets of it."""
    return load.part(1, num_replicas) if num_replicas > 1 else load


def of_all(figures: Mapping[str, Any], num_replicas: int) -> dict[str, Any]:
    """Figures of one replica, as all together have them: what requests felt is the same."""
    rates = {name: num_replicas * value for name, value in figures.items() if name.endswith("_per_s")}
    return {**figures, **rates}


def choose(text: str, kind: str, kinds: tuple[Kind, ...] = ()) -> Workload:
    """By name, or of a file, or of `kinds` if there are any; `kind` is that of the device. Raises ConfigError and InvalidRequest."""
    if kinds:
        return _synthetic(text, Synthetic(kinds), AT_ONCE[kind])
    if text in NAMED:
        given = NAMED[text]
        return _synthetic(text, _smaller(given) if kind == "cpu" else given, AT_ONCE[kind])
    if not Path(text).is_file():
        raise ConfigError("workload", text, READ)
    return _recorded(text, Trace.read(Path(text)))


def _synthetic(name: str, given: Synthetic, num_at_once: int) -> Workload:
    def at(rate: float, duration_s: float) -> Load:
        if math.isinf(rate):
            return replace(given, concurrency=num_at_once, num_sessions=num_at_once, think_s=0.0)
        return replace(given, rate=rate / given.turns, duration_s=duration_s)

    longest = given.shared_len + given.turns * max(_most(kind.input_len) + _most(kind.output_len) for kind in given.kinds)
    return Workload(name, at, longest)


def _recorded(name: str, trace: Trace) -> Workload:
    arrivals = list(trace.first())
    natural = len(arrivals) / max(arrivals[-1].at_s, 1e-3)

    def at(rate: float, duration_s: float) -> Load:
        stretched = [one._replace(at_s=one.at_s * natural / rate) for one in arrivals]
        return Trace(tuple(one for one in stretched if one.at_s < duration_s) or tuple(stretched[:1]))

    return Workload(name, at, max(len(one.tokens) + one.output_len for one in arrivals), natural)


def _smaller(given: Synthetic) -> Synthetic:
    def divided(length: Length) -> Length:
        if isinstance(length, int):
            return max(1, length // SMALLER_ON_CPU)
        return max(1, length[0] // SMALLER_ON_CPU), max(1, length[1] // SMALLER_ON_CPU)

    kinds = tuple(Kind(divided(kind.input_len), divided(kind.output_len), kind.share) for kind in given.kinds)
    return replace(given, kinds=kinds, shared_len=given.shared_len // SMALLER_ON_CPU)


def _most(length: Length) -> int:
    return length if isinstance(length, int) else length[1]
