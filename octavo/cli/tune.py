"""`octavo tune`: the settings that serve a load best within limits for latencies, found by simulation and confirmed by measuring."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from octavo.bench.workloads import read_length
from octavo.cli.flags import Settings
from octavo.cli.plan import read_config
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, Flag, at_least
from octavo.env import cache_root
from octavo.plan.cost import SHIPPED, cost_model
from octavo.plan.devices import Device
from octavo.progress import Progress
from octavo.simulate.load import Kind
from octavo.tune import workload as loads
from octavo.tune.objective import LIMITS_READ, Slo, names
from octavo.tune.objective import choose as choose_objective


@dataclass(frozen=True)
class TuneOptions:
    """For which load, to what end, and where the result goes."""

    workload: Annotated[str, Flag(f"the load; {loads.READ}")] = "chat"
    slo: Annotated[str, Flag(f"{LIMITS_READ}; none: all requests come at once, and nobody waits")] = ""
    objective: Annotated[str, Flag("throughput: the most requests a second within the limits; ttft, itl, e2e: lowest p99")] = "throughput"
    rate: Annotated[float | None, Flag("requests a second at which a latency is to be low; default: a trace's own")] = None
    duration: Annotated[float, Flag("seconds in which the requests of each load arrive")] = 10.0
    trials: Annotated[int, Flag("number of settings that are tried in the simulator")] = 60
    confirm: Annotated[int, Flag("number of the best of them that are measured")] = 2
    probes: Annotated[int, Flag("number of rates that are played, at most, to measure one set of settings")] = 4
    lossy: Annotated[bool, Flag("also try what changes outputs a little: int8 and fp8 in the KV cache")] = False
    output: Annotated[str, Flag("the settings file, for --config")] = "octavo-tuned.yaml"
    output_html: Annotated[str | None, Flag("the report; default: beside the settings file")] = None
    state: Annotated[str | None, Flag("what was played, to go on from after an interruption; default: beside the settings file")] = None
    own_time: Annotated[bool, Flag("count the seconds that this process works instead of a clock's, on a machine that others use too")] = (
        False
    )

    def __post_init__(self) -> None:
        for name in ("trials", "confirm", "probes"):
            at_least(name, getattr(self, name), 1)
        for name in ("rate", "duration"):
            if (getattr(self, name) or 1.0) <= 0:
                raise ConfigError(name, getattr(self, name), "it must be greater than 0")
        if self.objective not in names():
            raise ConfigError("objective", self.objective, f"use {', '.join(names())}")
        Slo.read(self.slo)

    def beside(self, given: str | None, ending: str) -> Path:
        return Path(given) if given else Path(self.output).with_suffix(ending)


OPTIONS = TuneOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    from octavo.bench.report import circumstances
    from octavo.tune import report
    from octavo.tune.course import tune

    options: TuneOptions = settings.topic(TuneOptions)
    flags = settings.engine_flags()
    machine, task = _set_out(options, flags, read_config(settings.engine().model))
    first = cost_model(machine.subject.arch, machine.subject.settings, machine.subject.device, (cache_root() / "costs", SHIPPED))
    try:
        with Progress(task.total_s, "s of work") as progress:
            found = tune(machine, task, first, progress, _say)
            progress.advance(max(0, task.total_s - progress.done))
    finally:
        machine.close()
    head = report.Head(
        circumstances(sys.argv[1:]), str(flags.get("model", "")), options.workload, Slo.read(options.slo), task.objective.unit
    )
    flagged = {name: value for name, value in flags.items() if name != "model"}
    Path(options.output).write_text(report.settings_file(head, found, task.choices, flagged), encoding="utf-8")
    options.beside(options.output_html, ".html").write_text(report.page(head, found, task.choices), encoding="utf-8")
    print(report.as_text(head, found, task.choices))
    print(f"\n  octavo serve {head.model} --config {options.output}\n  report: {options.beside(options.output_html, '.html')}")
    return 0


def _set_out(options: TuneOptions, flags: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The machine, and what is to be done with it. Raises ConfigError."""
    from octavo.bench.cost import Subject
    from octavo.tune.course import Task
    from octavo.tune.journal import Journal
    from octavo.tune.machine import Machine, start_llm
    from octavo.tune.space import choices

    subject = Subject.of(flags, offline=False)
    settings = subject.settings
    load = loads.choose(options.workload, settings.device, kinds_of(options.workload))
    if load.longest > settings.max_model_len:
        longest = f"its longest request has {load.longest} tokens, more than --max-model-len {settings.max_model_len}"
        raise ConfigError("workload", options.workload, f"{longest}; use a shorter one")
    slo, duration_s = Slo.read(options.slo), options.duration
    num_devices = Device.here()[1]
    aim = choose_objective(options.objective, slo, options.rate or load.rate, duration_s)
    told = {**asdict(options), "state": None, "output": None, "output_html": None, "flags": dict(flags), "device": subject.device.name}
    journal = Journal(options.beside(options.state, ".state.json"), told)
    machine = Machine(flags, subject, config, start_llm, journal, load, options.own_time, num_devices)
    moved = choices(settings, flags, slo, machine.kv_formats() if options.lossy else (), num_devices)
    return machine, Task(aim, moved, duration_s, options.trials, options.confirm, options.probes)


def kinds_of(text: str) -> tuple[Kind, ...]:
    """Of `0.5:4096/256,0.5:128/256`; none for what is no such text."""
    found: list[Kind] = []
    for part in text.split(","):
        share, colon, lengths = part.partition(":")
        input_len, slash, output_len = lengths.partition("/")
        try:
            if not (colon and slash) or float(share) <= 0:
                return ()
            found.append(Kind(read_length(input_len), read_length(output_len), float(share)))
        except ValueError:
            return ()
    return tuple(found)


def _say(line: str) -> None:
    print(f"  {line}", file=sys.stderr)
