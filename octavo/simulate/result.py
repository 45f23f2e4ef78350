"""What a load felt like: latencies, throughput and the state of the engines. One form for what was simulated and what was measured."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTS = (50, 90, 95, 99)


@dataclass(slots=True)
class Served:
    """One request that was answered; times on one clock."""

    arrival_s: float
    num_prompt: int
    first_s: float = 0.0  # when its first token came
    last_s: float = 0.0
    num_output: int = 0
    queued_s: float = 0.0
    num_cached: int = 0


@dataclass
class Usage:
    """Gauges over time: means are weighted by how long a state lasted."""

    seconds: float = 0.0  # idle ones included
    kv: float = 0.0  # share times seconds; likewise the next two
    running: float = 0.0
    waiting: float = 0.0
    most_kv: float = 0.0
    most_running: int = 0
    most_waiting: int = 0

    def add(self, seconds: float, kv: float, running: int, waiting: int) -> None:
        self.kv += seconds * kv
        self.running += seconds * running
        self.waiting += seconds * waiting
        if kv > self.most_kv:
            self.most_kv = kv
        if running > self.most_running:
            self.most_running = running
        if waiting > self.most_waiting:
            self.most_waiting = waiting


@dataclass
class Record:
    """Everything that a run gave."""

    served: list[Served] = field(default_factory=list[Served])
    gaps_s: array[float] = field(default_factory=lambda: array("d"))  # between tokens of one request, of all requests
    num_refused: int = 0
    usage: Usage = field(default_factory=Usage)
    counts: dict[str, float] = field(default_factory=dict[str, float])  # preemptions, steps and the like


def summarize(record: Record) -> dict[str, Any]:
    """Plain data: seconds and tokens. Latencies have their mean and percentiles."""
    used = record.usage
    over = used.seconds or 1.0
    return {
        **felt(record),
        "refused": record.num_refused,
        "queue_s": spread(one.queued_s for one in record.served if one.num_output),
        "kv_usage": {"mean": used.kv / over, "max": used.most_kv},
        "running": {"mean": used.running / over, "max": used.most_running},
        "waiting": {"mean": used.waiting / over, "max": used.most_waiting},
        **record.counts,
    }


def felt(record: Record) -> dict[str, Any]:
    """What a client can tell of a run."""
    served = [one for one in record.served if one.num_output]
    begin_s = min((one.arrival_s for one in served), default=0.0)
    seconds = max((one.last_s for one in served), default=0.0) - begin_s
    num_prompt, num_output = sum(one.num_prompt for one in served), sum(one.num_output for one in served)
    long = [one for one in served if one.num_output > 1]
    return {
        "requests": len(served),
        "seconds": seconds,
        "input_tokens": num_prompt,
        "output_tokens": num_output,
        "requests_per_s": len(served) / seconds if seconds else 0.0,
        "output_tokens_per_s": num_output / seconds if seconds else 0.0,
        "prompt_tokens_per_s": num_prompt / seconds if seconds else 0.0,
        "ttft_s": spread(one.first_s - one.arrival_s for one in served),
        "itl_s": spread(record.gaps_s),
        "tpot_s": spread((one.last_s - one.first_s) / (one.num_output - 1) for one in long),
        "e2e_s": spread(one.last_s - one.arrival_s for one in served),
        "prefix_hit_rate": sum(one.num_cached for one in served) / num_prompt if num_prompt else 0.0,
    }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Mean and percentiles, linear between ranks; zeros for no value."""
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else 0.0
    return {"mean": mean, **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTS}}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in rising order, as numpy's default does."""
    if not ordered:
        return 0.0
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


LATENCIES = {
    "ttft_s": "time to first token", "itl_s": "between tokens", "tpot_s": "a token, mean of each", "e2e_s": "whole request",
    "queue_s": "in the queue",
}  # fmt: skip


def as_table(found: Mapping[str, Any]) -> str:
    """One screen. What a run could not tell is left out."""
    lines = [
        f"  {found['requests']:,} requests in {found['seconds']:.1f} s: {found['requests_per_s']:.2f} requests/s, "
        f"{found['output_tokens_per_s']:,.0f} output tokens/s, {found['prompt_tokens_per_s']:,.0f} prompt tokens/s"
        + (f"; {found['refused']:,} refused" if found["refused"] else ""),
        "",
        f"  {'milliseconds':<24}" + "".join(f"{name:>11}" for name in ("mean", *(f"p{percent}" for percent in PERCENTS))),
    ]
    for name, label in LATENCIES.items():
        if name in found:
            lines.append(f"  {label:<24}" + "".join(f"{1000 * value:>11,.1f}" for value in found[name].values()))
    lines.append("")
    lines.append(f"  {'':<24}{'mean':>11}{'most':>11}")
    if "kv_usage" in found:
        lines.append(f"  {'KV memory in use':<24}{found['kv_usage']['mean']:>11.1%}{found['kv_usage']['max']:>11.1%}")
    for name in ("running", "waiting"):
        if name in found:
            lines.append(f"  {'requests ' + name:<24}{found[name]['mean']:>11,.1f}{found[name]['max']:>11,}")
    lines.append("")
    preempted = f"preemptions {found['preemptions']:,.0f}, " if "preemptions" in found else ""
    lines.append(f"  {preempted}prompt tokens found in the cache {found['prefix_hit_rate']:.1%}")
    return "\n".join(lines)
