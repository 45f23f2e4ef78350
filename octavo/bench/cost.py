"""Measures what steps cost: runs workloads of many shapes, fits the cost model to the engine's own log of steps, and judges the fit.

The fit to every second workload is judged on the others: by their steps, and by the time that the simulator gives the whole workload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.offline import Generator, run_once
from octavo.bench.workloads import Drawn, Workload, draw
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolved import Resolved
from octavo.plan.cost import CostKey, CostModel, Roofline, save
from octavo.plan.devices import Device
from octavo.plan.fit import Timing, fit, judge
from octavo.plan.memory import kv_layout
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Arrival, Trace


class Logging(Generator, Protocol):
    """The part of `LLM` that is measured, with its log of steps."""

    def get_step_log(self) -> Sequence[Timing]: ...

    def get_metrics(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Subject:
    """What the costs are of."""

    arch: Architecture
    settings: Resolved
    device: Device

    @staticmethod
    def of(flags: Mapping[str, Any]) -> Subject:
        """As an engine with these flags would be; asked before it takes its memory."""
        from octavo.config.resolve import resolve
        from octavo.engine.build import open_model
        from octavo.worker.device import detect

        config, device = EngineConfig.from_flags(**flags), detect()
        checkpoint = open_model(config).config
        return Subject(Architecture.from_config(checkpoint), resolve(config, checkpoint, device, offline=True), device)


@dataclass(frozen=True)
class Measured:
    """One workload, once."""

    drawn: Drawn
    seconds: float
    timings: tuple[Timing, ...]


def grid(settings: Resolved) -> dict[str, Workload]:
    """Few and many sequences, short and long ones, prompts alone."""
    longest = min(2048, settings.max_model_len // 2)
    short, output = max(1, longest // 8), max(1, min(64, settings.max_model_len // 4))
    counts = [1 << k for k in range(11) if 1 << k <= settings.max_num_seqs]
    found = {f"{count} short": Workload(count, (1, short), (max(1, output // 2), output)) for count in counts}
    found |= {f"{count} long": Workload(count, (short, longest), (1, output)) for count in counts if count * longest <= 1 << 16}
    found |= {f"{count} prompts": Workload(count, longest, 1) for count in (1, 4)}
    return found


def measure(
    llm: Logging, settings: Resolved, vocab_size: int, seed: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Measured]:
    """Each workload of the grid, after a run of it that is not counted."""
    found: dict[str, Measured] = {}
    for number, (name, workload) in enumerate(grid(settings).items()):
        run_once(llm, draw(workload, vocab_size, seed + 2 * number), clock)
        drawn = draw(workload, vocab_size, seed + 2 * number + 1)
        before = llm.get_metrics()["num_steps"]
        seconds, _ = run_once(llm, drawn, clock)
        count = llm.get_metrics()["num_steps"] - before
        found[name] = Measured(drawn, seconds, tuple(llm.get_step_log()[-count:]))
    return found


def simulated_s(subject: Subject, model: CostModel, drawn: Drawn) -> float:
    """How long the simulator takes for prompts that come all at once."""
    settings = subject.settings
    arrivals = [Arrival(0.0, prompt, output_len) for prompt, output_len in zip(drawn.prompts, drawn.output_lens)]
    layout = kv_layout(subject.arch, settings.kv_dtype, settings.block_size, settings.kv_bytes)
    record, _ = simulate(Trace(tuple(arrivals)), settings, layout, model.seconds)
    return max(one.last_s for one in record.served)


def conclude(subject: Subject, measured: Mapping[str, Measured], folder: Path) -> dict[str, Any]:
    """Fit, judge and keep the costs in `folder`."""
    roofline = Roofline.of(subject.arch, subject.settings, subject.device)
    cases = list(measured.items())
    half = fit(roofline, [timing for _, case in cases[::2] for timing in case.timings])
    errors = judge(half, [timing for _, case in cases[1::2] for timing in case.timings])
    workloads: dict[str, dict[str, float]] = {}
    for name, case in cases[1::2]:
        guess = simulated_s(subject, half, case.drawn)
        workloads[name] = {"measured_s": case.seconds, "simulated_s": guess, "error": guess / case.seconds - 1}
    found = fit(roofline, [timing for _, case in cases for timing in case.timings])
    worst = max(abs(one["error"]) for one in workloads.values())
    found = replace(found, origin=f"{found.origin}; fitted to half of the workloads it was up to {worst:.0%} off in the others")
    key = CostKey.of(subject.arch, subject.settings, subject.device)
    save(folder / key.file_name, key, found, errors)
    path = str(folder / key.file_name)
    return {"coefficients": found.coefficients._asdict(), "errors": dict(errors), "workloads": workloads, "file": path}
