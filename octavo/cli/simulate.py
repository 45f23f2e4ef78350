"""`octavo simulate`: how a load would be served, from a model's config.json and a device's figures. No weights and no GPU are needed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from octavo.bench.workloads import read_length
from octavo.cli.flags import CommandLineError, Settings
from octavo.cli.plan import read_config
from octavo.config.architecture import Architecture
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import ConfigError, Flag, at_least
from octavo.config.resolve import resolve
from octavo.env import cache_root
from octavo.plan.cost import SHIPPED, cost_model
from octavo.plan.devices import GPUS, Device
from octavo.plan.memory import kv_layout
from octavo.plan.swings import Swinging
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Kind, Load, Synthetic, Trace
from octavo.simulate.result import as_table, summarize

KINDS = "share:input/output such as 0.5:4096/256, ranges as in --input-len; several kinds of requests, in place of the two lengths"


@dataclass(frozen=True)
class SimulateOptions:
    """Which device, which load."""

    device: Annotated[str, Flag(f"cpu (this machine's), or {', '.join(GPUS)}")] = "cpu"
    rate: Annotated[float, Flag("sessions a second that arrive, over all replicas")] = 1.0
    duration: Annotated[float, Flag("seconds in which sessions arrive; the last are served to their end")] = 60.0
    burstiness: Annotated[float, Flag("shape of the gamma distributed gaps: 1 is Poisson, lower numbers give bursts")] = 1.0
    concurrency: Annotated[int | None, Flag("so many users instead of a rate; each sends the next when its last is answered")] = None
    num_prompts: Annotated[int, Flag("requests that those users send together")] = 1000
    input_len: Annotated[str, Flag("prompt tokens of each, or a uniform range such as 100:1024")] = "512"
    output_len: Annotated[str, Flag("output tokens of each, or a uniform range")] = "128"
    mix: Annotated[tuple[str, ...], Flag(KINDS)] = ()
    turns: Annotated[int, Flag("requests of a session; each repeats the conversation and adds --input-len tokens")] = 1
    think_time: Annotated[float, Flag("seconds between an answer and the next turn")] = 0.0
    shared_len: Annotated[int, Flag("further tokens at the beginning of prompts that many sessions share, such as a system prompt")] = 0
    num_shared: Annotated[int, Flag("number of different such beginnings")] = 1
    trace: Annotated[str | None, Flag("a file of arrivals instead, one JSON object a line (docs/simulate.md)")] = None
    load_seed: Annotated[int, Flag("start of the random numbers that the load is drawn from")] = 1
    replicas: Annotated[int, Flag("replicas of the engine behind a router; above 64, a fair part of the load is served by 64")] = 1
    affinity: Annotated[int, Flag("how many more requests may wait where a prompt's beginning was computed, for it to be sent there")] = 0
    json: Annotated[bool, Flag("print one JSON object")] = False

    def __post_init__(self) -> None:
        for name in ("num_prompts", "concurrency", "turns", "num_shared", "replicas"):
            at_least(name, getattr(self, name), 1)
        for name in ("think_time", "shared_len", "affinity"):
            at_least(name, getattr(self, name), 0)
        for name in ("rate", "duration", "burstiness"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "it must be greater than 0")
        self.kinds()

    def kinds(self) -> tuple[Kind, ...]:
        if not self.mix:
            return (_kind("input_len", f"1:{self.input_len}/{self.output_len}", f"{self.input_len}, {self.output_len}"),)
        return tuple(_kind("mix", text, text) for text in self.mix)

    def load(self) -> Load:
        if self.trace is not None:
            return Trace.read(Path(self.trace))
        return Synthetic(
            kinds=self.kinds(), rate=self.rate, duration_s=self.duration, burstiness=self.burstiness, concurrency=self.concurrency or 0,
            num_sessions=self.num_prompts, turns=self.turns, think_s=self.think_time, shared_len=self.shared_len,
            num_shared=self.num_shared, seed=self.load_seed,
        )  # fmt: skip


OPTIONS = SimulateOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    options: SimulateOptions = settings.topic(SimulateOptions)
    asked = settings.engine()
    try:
        device = Device.named(options.device)
        load = options.load()
    except (ValueError, OSError) as error:
        raise CommandLineError(str(error)) from None
    config = read_config(asked.model)
    arch = Architecture.from_config(config)
    chosen = resolve(asked, config, device)
    costs = cost_model(arch, chosen, device, (cache_root() / "costs", SHIPPED))
    begin_s = time.process_time()
    layout = kv_layout(arch, chosen)
    record, simulated = simulate(load, chosen, layout, Swinging(costs), options.replicas, options.affinity, foreseen=costs.seconds)
    found = summarize(record)
    took_s = time.process_time() - begin_s
    if options.json:
        print(json.dumps(_head(asked.model.model, device, options, simulated, costs.origin, took_s) | found))
    else:
        of = f", of which {simulated} were simulated with their part of the load" if simulated < options.replicas else ""
        fleet = f"{options.replicas} replica{'s' * (options.replicas > 1)}{of}"
        print(f"{asked.model.model} on {device.name}, {fleet}; costs: {costs.origin}\n")
        pace = f"simulated in {took_s:.1f} s of one core, {found['seconds'] / took_s:,.0f} times as fast as real time"
        print(f"{as_table(found)}, device busy {found['device_busy']:.0%}\n\n  {pace}")
    return 0 if found["requests"] else 1


def _head(model: str, device: Device, options: SimulateOptions, simulated: int, costs: str, took_s: float) -> dict[str, Any]:
    return {
        "model": model, "device": device.name, "replicas": options.replicas, "simulated_replicas": simulated, "costs": costs,
        "simulation_s": took_s,
    }  # fmt: skip


def _kind(name: str, text: str, given: str) -> Kind:
    share, _, lengths = text.partition(":")
    input_len, _, output_len = lengths.partition("/")
    try:
        if float(share) <= 0:
            raise ValueError("a share is positive")
        return Kind(read_length(input_len), read_length(output_len), float(share))
    except ValueError:
        allowed = "lengths are numbers of tokens such as 128, or ranges such as 100:1024" + (f"; {KINDS}" if name == "mix" else "")
        raise ConfigError(name, given, allowed) from None
