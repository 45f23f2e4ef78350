"""Simulated against real: loads played to an engine, and the same loads in the simulator with costs fitted to the other half of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from octavo.bench.cost import Engine, Measured, Subject, play, simulated, users, warm_up
from octavo.config.architecture import Architecture
from octavo.config.resolved import Packed, Resolved
from octavo.core.budget import Seconds
from octavo.plan.cost import CostModel, learned, relearn
from octavo.plan.devices import Device
from octavo.plan.fit import fit
from octavo.plan.timing import Timing
from octavo.simulate.load import Kind, Synthetic
from octavo.simulate.result import summarize

Figures = Mapping[str, float]
# Lengths are spread, so that steps have all sizes: with few sizes a 99th percentile falls between two of them, and says which by chance.
SHORT = {"cuda": (Kind((256, 768), (64, 192)),), "cpu": (Kind((64, 192), (12, 36)),)}
MIXED = {"cuda": (Kind(4096, 256, 0.5), Kind(128, 256, 0.5)), "cpu": (Kind(512, 24, 0.5), Kind(32, 24, 0.5))}
SHARES = (0.3, 0.5, 0.7, 0.9)  # of the capacity, at which requests arrive
LIGHT, BUSY = 0.05, 0.7  # so light that fewer than one gap in a hundred has a prompt read in it
USERS = {"short": 256, "mixed": 96}  # who are enough to keep a device busy
FEW = 8  # part of them
ROUNDS = 4  # requests of each of them, and as many in all of the few, by half
AHEAD = 0.2  # of a load with a target, played before it is measured
DRAWN = 5  # times a load is simulated: a 99th percentile of some hundred requests is chance by several percent
LEAST = 12  # requests of a load, or it goes on for longer
FIXED_TOKENS = 8192  # the step's budget that a target is compared with
COMPARED = {
    "requests/s": ("requests_per_s", None), "TTFT p50": ("ttft_s", "p50"), "TTFT p99": ("ttft_s", "p99"),
    "ITL p50": ("itl_s", "p50"), "ITL p99": ("itl_s", "p99"),
}  # fmt: skip
WHILE_WAITING = ("requests/s", "ITL p50", "ITL p99")  # what users who wait for each other can be compared by


@dataclass(frozen=True)
class Point:
    """One load under one set of settings."""

    name: str
    load: Mapping[str, Any]  # the arguments of Synthetic
    settings: Mapping[str, Any]  # what differs from the engine's

    def make(self) -> Synthetic:
        kinds = tuple(Kind(*(tuple(part) if isinstance(part, list) else part for part in kind)) for kind in self.load["kinds"])  # pyright: ignore[reportArgumentType]
        return Synthetic(**{**self.load, "kinds": kinds})

    @property
    def closed(self) -> bool:
        return "concurrency" in self.load


@dataclass(frozen=True)
class Played:
    """A point as the engine served it."""

    point: Point
    figures: Mapping[str, Any]  # as `summarize` gives them
    timings: tuple[Timing, ...]
    known: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what the engine took steps to cost; empty: as they did


class Bench:
    """Plays points to one engine, which goes on with other settings between them."""

    def __init__(self, llm: Engine, subject: Subject, vocab_size: int, told: Callable[[list[Played]], None] = lambda played: None) -> None:
        """`told` hears of all that was played, after each point."""
        self.llm, self.subject, self.vocab_size = llm, subject, vocab_size
        self.played: list[Played] = []
        self._told = told

    def play(self, point: Point) -> Figures:
        loop, _ = self.llm.inside
        loop.adjust(replace(self.subject.settings, **point.settings))
        if "target_itl_s" in point.settings:  # an engine that serves has learned by how much steps exceed what is foreseen
            play(self.llm, lambda: replace(point.make(), duration_s=AHEAD * point.load["duration_s"]), self.vocab_size)
        measured: Measured = play(self.llm, point.make, self.vocab_size)
        known = {**told_of(loop.costs.model), "caution": loop.costs.caution.factor} if loop.costs else {}
        self.played.append(Played(point, summarize(measured.record), measured.timings, known))
        self._told(self.played)
        return figures(self.played[-1].figures)


def run(bench: Bench, duration_s: float, target_itl_s: float, only_mixed: bool = False) -> None:
    """Long requests among short ones, by a fixed budget and by a target; then short ones, from light load to the capacity, unless
    `only_mixed`."""
    kind, most = bench.subject.settings.device, bench.subject.settings.max_num_seqs
    short, mixed = SHORT[kind], MIXED[kind]

    def closed(name: str, kinds: tuple[Kind, ...], count: int, num_requests: int, **settings: Any) -> float:
        load = {"kinds": as_lists(kinds), "concurrency": count, "num_sessions": num_requests}
        return bench.play(Point(f"{name}, {count} users", load, settings))["requests/s"]

    def open_(name: str, kinds: tuple[Kind, ...], rate: float, **settings: Any) -> None:
        load = {"kinds": as_lists(kinds), "rate": rate, "duration_s": max(duration_s, LEAST / rate)}
        bench.play(Point(f"{name}, {rate:.3g}/s", load, settings))

    warm_up(bench.llm, bench.subject.settings, bench.vocab_size)
    play(bench.llm, users(min(8, most), 2, *short, *mixed), bench.vocab_size)
    budget = min(FIXED_TOKENS, bench.subject.settings.max_num_batched_tokens)
    fixed = {"max_num_batched_tokens": budget}
    held = {**fixed, "target_itl_s": target_itl_s}
    count = min(most, USERS["mixed"])
    full = closed("mixed", mixed, count, ROUNDS * count, **fixed)
    for share in (BUSY, LIGHT):
        open_("mixed", mixed, share * full, **fixed)
        open_("mixed, target", mixed, share * full, **held)
    if only_mixed:
        return
    count = min(most, USERS["short"])
    full = closed("short", short, count, ROUNDS * count)
    closed("short", short, -(-count // FEW), ROUNDS * count // 2)
    for share in SHARES:
        open_("short", short, share * full)


def as_lists(kinds: Iterable[Kind]) -> list[list[Any]]:
    """As a JSON file gives them back."""
    return [[list(part) if isinstance(part, tuple) else part for part in asdict(one).values()] for one in kinds]


def judge(subject: Subject, played: Sequence[Played]) -> list[dict[str, Any]]:
    """Each point, simulated with costs fitted to the points of the other half."""
    halves = [fit_to(subject, played[start::2]) for start in (1, 0)]
    return [compare(subject, halves[number % 2], one) for number, one in enumerate(played)]


def fit_to(subject: Subject, played: Iterable[Played]) -> CostModel:
    return fit(subject.costs, [timing for one in played for timing in one.timings])


def compare(subject: Subject, model: CostModel, one: Played) -> dict[str, Any]:
    """What was measured, what the simulator says on average, and how far that is off."""
    settings = replace(subject.settings, **one.point.settings)
    known = foreseen(subject, one.known) if one.known else None
    drawn = [figures(summarize(simulated(subject, model, one.point.make(), settings, known, seed))) for seed in range(1, DRAWN + 1)]
    real, found = figures(one.figures), {name: statistics.fmean(one[name] for one in drawn) for name in COMPARED}
    names = WHILE_WAITING if one.point.closed else tuple(COMPARED)
    return {"name": one.point.name, "rows": {name: [real[name], found[name], found[name] / real[name] - 1] for name in names}}


def told_of(model: CostModel) -> dict[str, Any]:
    """Plain data: what of a cost model is measured, without how it swings."""
    return {**learned(replace(model, swings={})), "knee": model.roofline.knee}


def model_of(first: CostModel, told: Mapping[str, Any]) -> CostModel:
    """The model that `told_of` tells of, for the same settings as `first`."""
    return relearn(replace(first, roofline=replace(first.roofline, knee=told["knee"]), origin="told"), told)


def foreseen(subject: Subject, known: Mapping[str, Any]) -> Seconds:
    """What an engine takes steps to last that knows this."""
    model = model_of(subject.costs, known)
    return lambda shape: known["caution"] * model.seconds(shape)


def figures(found: Mapping[str, Any]) -> Figures:
    return {name: found[key] if part is None else found[key][part] for name, (key, part) in COMPARED.items()}


def as_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Measured, simulated and the error, for each point; times in milliseconds."""
    names = tuple(COMPARED)
    lines = ["| load | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for row in rows:
        cells = [_cell(name, row["rows"].get(name)) for name in names]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(name: str, values: Sequence[float] | None) -> str:
    if values is None:
        return ""
    real, guess, error = values
    unit, digits = (1.0, 2) if name == "requests/s" else (1000.0, 1)
    return f"{real * unit:.{digits}f}, {guess * unit:.{digits}f} ({error:+.0%})"


def held(played: Sequence[Played]) -> list[str]:
    """What the target did, beside the fixed budget: a line for each pair of loads."""
    lines: list[str] = []
    for fixed, aimed in pairwise(played):
        target_s = aimed.point.settings.get("target_itl_s")
        if target_s and fixed.point.load == aimed.point.load:
            one, other = figures(fixed.figures), figures(aimed.figures)
            share = other["requests/s"] / one["requests/s"]
            names = ("ITL p99", "TTFT p50", "TTFT p99")
            told = ", ".join(f"{name} {1000 * other[name]:.1f} ms (fixed budget {1000 * one[name]:.1f})" for name in names)
            lines.append(f"{fixed.point.name}, target {1000 * target_s:g} ms: {told}; requests/s {share:.1%} of the fixed budget's")
    return lines


def to_data(subject: Subject, played: Sequence[Played]) -> dict[str, Any]:
    """All that `from_data` needs to judge again, on any machine."""
    return {
        "device": asdict(subject.device), "settings": {**asdict(subject.settings), "reasons": {}},
        "points": [
            {**asdict(one.point), "figures": dict(one.figures), "timings": [step.row for step in one.timings], "known": dict(one.known)}
            for one in played
        ],
    }  # fmt: skip


def from_data(arch: Architecture, data: Mapping[str, Any]) -> tuple[Subject, list[Played]]:
    """What `to_data` wrote, with the architecture of its model. Raises KeyError for what it did not."""
    kinds = {one.name for one in fields(Resolved)}
    known = {name: value for name, value in data["settings"].items() if name in kinds}
    settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    settings["packed"] = Packed(*settings["packed"])
    device = Device(**{**data["device"], "fast_dtypes": tuple(data["device"]["fast_dtypes"])})
    played = [
        Played(
            Point(one["name"], one["load"], one["settings"]), one["figures"],
            tuple(map(Timing.of_row, one["timings"])), one.get("known", {}),
        )
        for one in data["points"]
    ]  # fmt: skip
    return Subject(arch, Resolved(**settings), device), played
