"""Measures what steps cost: plays loads of many shapes, fits the cost model to the engine's own log of steps, and judges the fit.

The fit to every second load is judged on the others: by their steps, and by the time that the simulator gives the whole load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.replay import Inbox, Player
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolved import Resolved
from octavo.core.budget import Seconds
from octavo.engine.loop import EngineLoop
from octavo.plan.cost import CostKey, CostModel, learned, save
from octavo.plan.devices import Device
from octavo.plan.fit import fit, judge
from octavo.plan.memory import kv_layout
from octavo.plan.swings import Swinging
from octavo.plan.timing import Timing
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Kind, Load, Synthetic
from octavo.simulate.result import Record

WARM_USERS = (12, 96)
TOKENS = {"cuda": 1 << 18, "cpu": 1 << 14}  # that a load of users reads, at most


class Engine(Protocol):
    """The part of `LLM` that is measured."""

    @property
    def inside(self) -> tuple[EngineLoop, Inbox]: ...


@dataclass(frozen=True)
class Subject:
    """What the costs are of."""

    arch: Architecture
    settings: Resolved
    device: Device

    @staticmethod
    def of(flags: Mapping[str, Any], *, offline: bool = True) -> Subject:
        """As an engine with these flags would be; asked before it takes its memory."""
        from octavo.config.resolve import resolve
        from octavo.engine.build import open_model
        from octavo.worker.device import detect

        config, device = EngineConfig.from_flags(**flags), detect()
        checkpoint = open_model(config).config
        return Subject(Architecture.from_config(checkpoint), resolve(config, checkpoint, device, offline=offline), device)

    @property
    def costs(self) -> CostModel:
        """What the device's rates say."""
        return CostModel.of(self.arch, self.settings, self.device)


@dataclass(frozen=True)
class Measured:
    """One load, once."""

    load: Load  # as it was before it was played
    record: Record
    timings: tuple[Timing, ...]

    @property
    def seconds(self) -> float:
        return max(one.last_s for one in self.record.served)


LoadMaker = Callable[[], Load]


def ignore(name: str, measured: Measured) -> None:
    """Nobody wants to know."""


def at_once(count: int, kind: Kind) -> Callable[[], Synthetic]:
    """So many requests that come together."""
    return lambda: Synthetic((kind,), concurrency=count, num_sessions=count)


def users(count: int, each: int, *kinds: Kind) -> Callable[[], Synthetic]:
    """So many users who send so many requests each: prompts are read while others' answers are made."""
    return lambda: Synthetic(kinds, concurrency=count, num_sessions=count * each)


def grid(settings: Resolved) -> dict[str, LoadMaker]:
    """Few and many sequences, short and long ones, prompts alone, and prompts beside answers."""
    longest = min(2048, settings.max_model_len // 2)
    short, output = max(1, longest // 8), max(1, min(64, settings.max_model_len // 4))
    counts = [1 << k for k in range(11) if 1 << k <= settings.max_num_seqs]
    found: dict[str, LoadMaker] = {f"{count} short": at_once(count, Kind((1, short), (max(1, output // 2), output))) for count in counts}
    found |= {f"{count} long": at_once(count, Kind((short, longest), (1, output))) for count in counts if count * longest <= 1 << 16}
    found |= {f"{count} prompts": at_once(count, Kind(longest, 1)) for count in (1, 4)}
    limit = TOKENS[settings.device]
    for count in counts[1::2]:
        if count * 4 * short <= limit:
            found[f"{count} users short"] = users(count, 4, Kind((1, short), (1, output)))
        if count * 2 * longest <= limit:
            found[f"{count} users long"] = users(count, 4, Kind((1, short), (1, output), 0.7), Kind(longest, (1, output), 0.3))
    whole = min(8192, settings.max_model_len)
    if settings.device == "cuda" and whole > 2 * longest:
        # Prompts that attend far back, and as much context at once as takes a few seconds.
        found["2 whole"] = at_once(2, Kind(whole - output, output))
        found["16 whole"] = at_once(min(16, settings.max_num_seqs), Kind((longest, whole - output), (1, output)))
    return found


def measure(
    llm: Engine, loads: Mapping[str, LoadMaker], settings: Resolved, vocab_size: int, told: Callable[[str, Measured], None] = ignore
) -> dict[str, Measured]:
    """Each load, after a run of it that is not counted; `told` hears of each at once."""
    warm_up(llm, settings, vocab_size)
    found: dict[str, Measured] = {}
    for name, make in loads.items():
        play(llm, make, vocab_size)
        found[name] = play(llm, make, vocab_size)
        told(name, found[name])
    return found


def warm_up(llm: Engine, settings: Resolved, vocab_size: int) -> None:
    """Steps of every size that is recorded, beside few and beside many sequences, until it was recorded (octavo/capture/passes.py); and of
    larger sizes, from one prompt and from several, so that what libraries choose by size is loaded."""
    bounds = (0, *(size for size in settings.pass_sizes if size < settings.max_model_len // 2))
    kinds = [Kind((low + 1, high), (1, 16)) for low, high in pairwise(bounds)] or [Kind((1, 16), (1, 8))]
    for count in WARM_USERS if settings.pass_sizes else WARM_USERS[:1]:
        play(llm, users(min(count, settings.max_num_seqs), -(-8 * len(kinds) // count) + 1, *kinds), vocab_size)
    longest, recorded = settings.max_model_len // 2, max(settings.pass_sizes, default=0)
    if settings.pass_sizes and recorded < longest:
        play(llm, users(4, 8, Kind((recorded + 1, longest), (1, 16))), vocab_size)
        play(llm, users(min(32, settings.max_num_seqs), 2, Kind((recorded // 4, recorded), (1, 16))), vocab_size)


def play(llm: Engine, make: LoadMaker, vocab_size: int) -> Measured:
    """One load, with the steps that it took (the last of them, where there were more than the log keeps)."""
    loop, inbox = llm.inside
    before = loop.scheduler.stats()["num_steps"]
    record = Player(loop, inbox, make(), vocab_size).run()
    count = int(loop.scheduler.stats()["num_steps"] - before)
    return Measured(make(), record, tuple(loop.step_log.timings()[-count:]))


def simulated(
    subject: Subject, model: CostModel, load: Load, settings: Resolved | None = None, foreseen: Seconds | None = None, seed: int = 1
) -> Record:
    """The same load in the simulator; `foreseen` is what the engine knew of steps, if not `model`. `seed` is of the swings of steps."""
    settings = settings or subject.settings
    foreseen = foreseen or model.seconds
    return simulate(load, settings, kv_layout(subject.arch, settings), Swinging(model, seed), foreseen=foreseen)[0]


def conclude(subject: Subject, measured: Mapping[str, Measured], folder: Path) -> dict[str, Any]:
    """Fit, judge and keep the costs in `folder`."""
    cases = list(measured.items())
    half = fit(subject.costs, [timing for _, case in cases[::2] for timing in case.timings])
    errors = judge(half, [timing for _, case in cases[1::2] for timing in case.timings])
    workloads: dict[str, dict[str, float]] = {}
    for name, case in cases[1::2]:
        guess = max(one.last_s for one in simulated(subject, half, case.load).served)
        workloads[name] = {"measured_s": case.seconds, "simulated_s": guess, "error": guess / case.seconds - 1}
    found = fit(subject.costs, [timing for _, case in cases for timing in case.timings])
    worst = max(abs(one["error"]) for one in workloads.values())
    found = replace(found, origin=f"{found.origin}; fitted to half of the loads it was up to {worst:.0%} off in the others")
    key = CostKey.of(subject.arch, subject.settings, subject.device)
    path = folder / key.file_name
    save(path, key, found, errors)
    return {
        **learned(found), "errors": dict(errors), "workloads": workloads,
        "file": str(path),
        "costs": json.loads(path.read_text(encoding="utf-8")),
        "timings": {name: [one.row for one in case.timings] for name, case in cases},
    }  # fmt: skip
