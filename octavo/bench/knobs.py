"""What each setting does on this machine: one flag at a time is moved away from its default, and the load that it matters for is played.

A knob is a row of data: the values of its flags, and the loads. Settings that several knobs share are started once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from octavo.bench.cost import Engine, at_once, play, users
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.plan.memory import MemoryPlan
from octavo.simulate.load import Kind, Synthetic
from octavo.simulate.result import summarize

Changes = Mapping[str, Any]
LoadMaker = Callable[[], Synthetic]
ON_CPU = 16  # by which lengths, budgets and numbers of sequences are divided there
FIGURES = {  # columns of a report: path into what a run gave, factor
    "output tokens/s": (("output_tokens_per_s",), 1.0),
    "first token p50, ms": (("ttft_s", "p50"), 1000.0),
    "first token p99, ms": (("ttft_s", "p99"), 1000.0),
    "between p50, ms": (("itl_s", "p50"), 1000.0),
    "between p99, ms": (("itl_s", "p99"), 1000.0),
    "found in the cache": (("prefix_hit_rate",), 1.0),
    "preemptions": (("preemptions",), 1.0),
}


@dataclass(frozen=True)
class Knob:
    """One thing that can be turned. The effect of a value is told over the first."""

    name: str
    about: str  # what to look at
    values: tuple[tuple[str, Changes], ...]  # what is shown, and the flags
    loads: tuple[tuple[str, LoadMaker], ...]


class Started(Engine, Protocol):
    """The part of `LLM` that is needed here."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Trial:
    """One value of a knob under one load: figures as `octavo.simulate.result.summarize` gives them, or why it cannot be."""

    knob: str
    value: str
    load: str
    changes: Changes
    figures: Mapping[str, Any] | None = None
    refused: str = ""


def knobs(settings: Resolved, plan: MemoryPlan) -> list[Knob]:
    """Those of a device, with loads of its size. `plan` says how much memory sequences take."""
    on_gpu = settings.device == "cuda"
    by, most = (1 if on_gpu else ON_CPU), settings.max_model_len
    long, short, out = min(4096 // by, most // 2), max(8, 128 // by), min(256 // by, most // 4)
    people, each = (64, 4) if on_gpu else (8, 2)
    mixed = ("short and long prompts", users(people, each, Kind(short, out, 0.5), Kind(long, out, 0.5)))
    many = ("many short requests", at_once(512 if on_gpu else 24, Kind(short, out)))
    held = people * (long + out)  # tokens, if all were long
    shares = (0.25, 0.5, 1.0)
    memory = (
        tuple((f"{share:.0%}", {"gpu_memory_utilization": share}) for share in (0.5, 0.7, 0.9))
        if on_gpu
        else tuple((f"{share:.0%} of the load", {"kv_cache_memory_bytes": _room(plan, share * held, settings)}) for share in shares)
    )
    return [
        Knob(
            "chunked prefill", "Small steps keep the gaps between tokens short, large ones read prompts soon.",
            (
                *((f"{budget:,}", {"max_num_batched_tokens": budget}) for budget in (n // by for n in (2048, 4096, 8192, 16384))),
                ("off", {"enable_chunked_prefill": False, "max_num_batched_tokens": max(most, 16384 // by)}),
            ),
            (mixed,),
        ),
        Knob(
            "max_num_seqs", "More at once means more tokens a second, until memory or the device's rate ends it, and longer gaps.",
            tuple((str(count), {"max_num_seqs": count}) for count in (n // by for n in (32, 64, 128, 256, 512))), (many,),
        ),
        Knob(
            "prefix cache", "Prompts that begin alike are read once: a system prompt, what was said before, examples before a question.",
            (("on", {"enable_prefix_caching": True}), ("off", {"enable_prefix_caching": False})),
            tuple(shared_loads(long, short, out, people, each).items()),
        ),
        Knob(
            "graphs", "A recorded step costs the host one launch; what that is worth shows where a step does little.",
            tuple((name, {"enforce_eager": name == "off", "max_num_seqs": max(64, settings.max_num_seqs)}) for name in ("on", "off")),
            tuple((f"{count} sequences", at_once(count, Kind(short, 2 * out))) for count in (1, 16, 64)),
        ),
        Knob(
            "KV dtype", "Smaller numbers hold more tokens, and are widened when they are read.",
            tuple((kind, {"kv_cache_dtype": kind}) for kind in ("auto", "fp8", "int8")), (mixed,),
        ),
        Knob(
            "block size", "Small blocks waste less and find shorter beginnings; large ones mean fewer entries to look up.",
            tuple((str(size), {"block_size": size}) for size in (16, 8, 32, 64, 128)), (mixed,),
        ),
        Knob("memory share", "Too little memory for the KV cache and sequences wait, or are preempted and read again.", memory, (mixed,)),
    ]  # fmt: skip


def shared_loads(long: int, short: int, out: int, people: int, each: int) -> dict[str, LoadMaker]:
    """Three ways in which prompts begin alike."""
    count = people * each

    def load(**shape: Any) -> LoadMaker:
        return lambda: Synthetic((Kind(short, out),), concurrency=people, **shape)

    return {
        "shared system prompt": load(num_sessions=count, shared_len=long),
        "conversations": load(num_sessions=max(1, count // 4), turns=4),
        "few-shot examples": load(num_sessions=count, shared_len=long, num_shared=4),
    }


def _room(plan: MemoryPlan, num_tokens: float, settings: Resolved) -> int:
    """Bytes for so many tokens, and for one sequence of the full length at least."""
    return int(plan.kv_bytes_per_token * max(num_tokens, settings.max_model_len + settings.block_size))


def run(
    chosen: Sequence[Knob], start: Callable[[Changes], Started], vocab_size: int, told: Callable[[Sequence[Trial]], None]
) -> list[Trial]:
    """All trials in the knobs' order. `start` makes an engine with changes and raises `ConfigError` where they cannot be; `told` hears
    after each trial of all so far, in the order in which they were made."""
    found: dict[tuple[str, str, str], Trial] = {}
    by_changes: dict[tuple[tuple[str, Any], ...], list[tuple[Trial, LoadMaker]]] = {}
    for trial, make in _trials(chosen):
        by_changes.setdefault(tuple(sorted(trial.changes.items())), []).append((trial, make))
    for trials in by_changes.values():
        for trial in _play(trials, start, vocab_size):
            found[trial.knob, trial.value, trial.load] = trial
            told(list(found.values()))
    return [found[trial.knob, trial.value, trial.load] for trial, _ in _trials(chosen)]


def _trials(chosen: Sequence[Knob]) -> Iterator[tuple[Trial, LoadMaker]]:
    for knob in chosen:
        for load, make in knob.loads:
            for value, changes in knob.values:
                yield Trial(knob.name, value, load, changes), make


def _play(trials: Sequence[tuple[Trial, LoadMaker]], start: Callable[[Changes], Started], vocab_size: int) -> Iterator[Trial]:
    """All of them on one engine, each after a part of it that is not counted, in which what is recorded is met."""
    first = trials[0][0]
    try:
        engine = start(first.changes)
    except ConfigError as error:
        for trial, _ in trials:
            yield Trial(trial.knob, trial.value, trial.load, trial.changes, refused=str(error))
        return
    try:
        for trial, make in trials:
            play(engine, _part(make), vocab_size)
            figures = summarize(play(engine, make, vocab_size).record)
            yield Trial(trial.knob, trial.value, trial.load, trial.changes, figures)
    finally:
        engine.close()


def _part(make: LoadMaker) -> LoadMaker:
    load = make()
    return lambda: replace(load, num_sessions=max(load.concurrency, load.num_sessions // 4))


def figure(trial: Trial, name: str) -> float | None:
    """A column of a trial; None where it was refused."""
    if trial.figures is None:
        return None
    path, factor = FIGURES[name]
    value: Any = trial.figures
    for key in path:
        value = value[key]
    return factor * value
