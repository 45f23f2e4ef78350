"""`octavo bench`: latency and throughput of a model on this machine, as JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from octavo.bench.workloads import CASES, Length, Workload, read_length
from octavo.cli.flags import CommandLineError, Settings
from octavo.config.engine import ENGINE_TOPICS, EngineConfig
from octavo.config.fields import ConfigError, Flag, at_least
from octavo.env import cache_root


@dataclass(frozen=True)
class BenchOptions:
    """What is measured."""

    kind: Annotated[
        Literal["latency", "throughput", "cost"] | None,
        Flag("latency: one batch, again and again; throughput: all requests at once; cost: steps of many shapes, for plan and simulate"),
    ] = None
    case: Annotated[tuple[str, ...], Flag(f"known workloads: {', '.join(CASES)}")] = ()
    num_prompts: Annotated[
        int | None, Flag("requests of a free workload; default: 8 for latency, 256 for throughput", also=("batch_size",))
    ] = None
    input_len: Annotated[str, Flag("prompt tokens of each, or a uniform range such as 100:1024")] = "128"
    output_len: Annotated[str, Flag("output tokens of each, or a uniform range")] = "128"
    num_iters: Annotated[int, Flag("runs of each workload, for latency")] = 10
    workload_seed: Annotated[int, Flag("start of the random numbers that prompts are drawn from")] = 1
    check: Annotated[bool, Flag("first compare logits with -O0 at each workload's shapes; nothing is measured if they differ")] = False
    output_json: Annotated[str | None, Flag("also write the result to this file")] = None

    def __post_init__(self) -> None:
        for name in self.case:
            if name not in CASES:
                raise ConfigError("case", name, f"use {', '.join(CASES)}")
        at_least("num_prompts", self.num_prompts, 1)
        at_least("num_iters", self.num_iters, 1)
        for name in ("input_len", "output_len"):
            _length(name, getattr(self, name))

    def workloads(self) -> dict[str, Workload]:
        if self.case:
            return {name: CASES[name] for name in self.case}
        count = self.num_prompts or (8 if self.kind == "latency" else 256)
        return {"free": Workload(count, _length("input_len", self.input_len), _length("output_len", self.output_len))}


OPTIONS = BenchOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    options: BenchOptions = settings.topic(BenchOptions)
    if options.kind is None:
        raise CommandLineError("say what to measure: octavo bench latency, throughput, cost, serve or startup")
    settings.engine()
    result = measure(options, {**settings.engine_flags(), "skip_tokenizer_init": True})
    text = json.dumps(result)
    print(text)
    if options.output_json:
        Path(options.output_json).write_text(text + "\n", encoding="utf-8")
    return 0 if result["results"] else 1


def measure(options: BenchOptions, flags: dict[str, Any]) -> dict[str, Any]:
    """Start an engine and run each workload once (throughput) or several times (latency)."""
    from octavo.bench.offline import latency, throughput, warm_up
    from octavo.bench.report import circumstances

    parallel = EngineConfig.from_flags(**flags).parallel
    num_devices = parallel.world_size * parallel.data_parallel_size
    checks = {}
    if options.check:
        from octavo.bench.offline import check

        check_s = time.perf_counter()
        checks = check(flags, options.workloads(), options.workload_seed)
        print(f"checked in {time.perf_counter() - check_s:.1f} s: {_worst(checks)}", file=sys.stderr)
        wrong = {name: found for name, found in checks.items() if not found["right"]}
        if wrong:
            return {**circumstances(sys.argv[1:], num_devices), "flags": flags, "kind": options.kind, "checks": checks, "results": {}}
    if options.kind == "cost":
        return _measure_costs(options, flags)
    begin_s = time.perf_counter()
    from octavo.llm import LLM

    imported_s = time.perf_counter()
    llm = LLM(**flags)
    ready_s = time.perf_counter()
    vocab_size = llm.info["vocab_size"]
    first_tokens_s = warm_up(llm, vocab_size, parallel.data_parallel_size)
    results: dict[str, Any] = {}
    for name, workload in options.workloads().items():
        if options.kind == "latency":
            results[name] = latency(llm, workload, vocab_size, options.workload_seed, options.num_iters)
        else:
            results[name] = throughput(llm, workload, vocab_size, options.workload_seed)
        print(f"{name}: {_line(results[name])}", file=sys.stderr)
    llm.close()
    start = {
        "import_s": imported_s - begin_s,
        "init_s": ready_s - imported_s,
        "first_tokens_s": first_tokens_s,
        "timeline": llm.info["timeline"],
        "meanwhile": llm.info["meanwhile"],
    }
    head = {**circumstances(sys.argv[1:], num_devices), "flags": flags}
    return {**head, "start": start, "kind": options.kind, "checks": checks, "results": results}


def _measure_costs(options: BenchOptions, flags: dict[str, Any]) -> dict[str, Any]:
    """Fit the cost model of these settings on this machine, and keep it in the cache folder."""
    from octavo.bench import cost
    from octavo.bench.report import circumstances
    from octavo.llm import LLM

    subject = cost.Subject.of(flags)
    llm = LLM(**flags)
    head = {**circumstances(sys.argv[1:]), "flags": flags, "kind": "cost"}
    timings: dict[str, Any] = {}

    def keep(name: str, measured: cost.Measured) -> None:
        print(f"{name}: {measured.seconds:.3f} s", file=sys.stderr)
        timings[name] = [one.row for one in measured.timings]
        if options.output_json:  # a run that is cut short leaves what it has
            Path(options.output_json).write_text(json.dumps({**head, "results": {"timings": timings}}) + "\n", encoding="utf-8")

    measured = cost.measure(llm, cost.grid(subject.settings), subject.settings, llm.info["vocab_size"], keep)
    llm.close()
    found = cost.conclude(subject, measured, cache_root() / "costs")
    for name, one in found["workloads"].items():
        print(f"{name}: {one['measured_s']:.3f} s, simulated {one['simulated_s']:.3f} s ({one['error']:+.1%})", file=sys.stderr)
    return {**head, "results": found}


def _worst(checks: dict[str, Any]) -> str:
    return ", ".join(f"{name} {max(one['errors'].values()):.4f}" for name, one in checks.items())


def _line(result: dict[str, Any]) -> str:
    if "percentiles_s" in result:
        return f"mean {result['mean_s']:.3f} s, p99 {result['percentiles_s']['p99']:.3f} s, {result['ms_per_output_token']:.2f} ms a token"
    made, read = result["output_tokens_per_s"], result["prompt_tokens_per_s"]
    return f"{made:.1f} output tokens/s, {read:.1f} prompt tokens/s, {result['seconds']:.2f} s"


def _length(name: str, text: str) -> Length:
    try:
        return read_length(text)
    except ValueError:
        raise ConfigError(name, text, "a number of tokens such as 128, or a range such as 100:1024") from None
