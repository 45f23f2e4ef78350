"""What a load against a server gave, in the form in which `octavo simulate` tells its own."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.bench.serving.client import Outcome
from octavo.bench.serving.run import Run
from octavo.simulate.result import Record, Served, as_table, felt, percentile, spread

TOO_MANY = 429
ONE_EVENT = ("tpot", "itl")  # limits that a request of one token meets
BUSY_SHARE, LATE_S = 0.8, 0.02  # of a core; of the 99th percentile of sends


@dataclass(frozen=True)
class Slo:
    """What every good request keeps, in seconds by name: ttft, tpot (its mean), itl (the 99th percentile of its own gaps), e2e."""

    limits_s: Mapping[str, float]

    NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e", "e2el": "e2e"}

    @staticmethod
    def parse(texts: Iterable[str]) -> Slo:
        """From `ttft:200`, in milliseconds. Raises ValueError."""
        limits_s: dict[str, float] = {}
        for text in texts:
            name, _, limit = text.partition(":")
            if name not in Slo.NAMES or not limit or not 0 < float(limit) < float("inf"):
                raise ValueError(f"limits in milliseconds such as ttft:200 itl:50; the names are {', '.join(Slo.NAMES)}")
            limits_s[Slo.NAMES[name]] = float(limit) / 1000
        return Slo(limits_s)

    def met(self, outcome: Outcome) -> bool:
        """Whether the answer kept every limit."""
        return all(_felt(name, outcome) <= limit_s for name, limit_s in self.limits_s.items())


def _felt(name: str, outcome: Outcome) -> float:
    if name == "ttft":
        return outcome.ttft_s
    if name == "e2e":
        return outcome.e2e_s
    return outcome.tpot_s if name == "tpot" else percentile(sorted(outcome.gaps_s), 99)


def summarize(run: Run, slo: Slo | None = None) -> dict[str, Any]:
    """Plain data: the keys of `octavo simulate --json` that a client can tell, and `failed`, `errors`, `goodput`, `client`.

    Failed requests are in no latency and no throughput.
    """
    outcomes = run.outcomes
    good = [one for one in outcomes if one.error is None]
    refused = [one for one in outcomes if one.status == TOO_MANY]
    found = felt(_record(good))
    found |= {
        "refused": len(refused),
        "failed": len(outcomes) - len(good) - len(refused),
        "errors": dict(Counter(one.error for one in outcomes if one.error is not None).most_common()),
        "running": _running(outcomes),
        "client": _client(run),
    }
    if refused:
        found["refusal_s"] = spread(one.ended_s - one.sent_s for one in refused)
    if slo is not None and slo.limits_s:
        found["goodput"] = _goodput(slo, good, len(outcomes), found["seconds"])
    return found


def _record(good: Sequence[Outcome]) -> Record:
    served = [
        Served(one.sent_s, one.num_prompt, one.times_s[0], one.times_s[-1], one.num_output, num_cached=one.num_cached) for one in good
    ]
    return Record(served, array("d", (gap for one in good for gap in one.gaps_s)))


def _goodput(slo: Slo, good: Sequence[Outcome], num_all: int, seconds: float) -> dict[str, Any]:
    num_met = sum(map(slo.met, good))
    return {
        "limits_s": dict(slo.limits_s),
        "requests": num_met,
        "share": num_met / num_all if num_all else 0.0,
        "requests_per_s": num_met / seconds if seconds else 0.0,
        "output_tokens_per_s": sum(one.num_output for one in good if slo.met(one)) / seconds if seconds else 0.0,
    }


def course(outcomes: Iterable[Outcome]) -> list[tuple[float, int]]:
    """When the number of requests under way changed, and to what."""
    changes = sorted([(one.sent_s, 1) for one in outcomes] + [(one.ended_s, -1) for one in outcomes])
    course: list[tuple[float, int]] = []
    count = 0
    for at_s, change in changes:
        count += change
        course.append((at_s, count))
    return course


def _running(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Requests under way, as the client sees them."""
    whole_s = max((one.ended_s for one in outcomes), default=0.0) - min((one.sent_s for one in outcomes), default=0.0)
    mean = sum(one.ended_s - one.sent_s for one in outcomes) / whole_s if whole_s else 0.0
    return {"mean": mean, "max": max((count for _, count in course(outcomes)), default=0)}


def _client(run: Run) -> dict[str, Any]:
    """Whether the client itself was quick enough: its share of one core, the events that it read, and how late it sent."""
    share = run.cpu_s / run.seconds if run.seconds else 0.0
    late_s = spread(max(0.0, one.sent_s - one.due_s) for one in run.outcomes)
    return {
        "cpu_share": share,
        "events": sum(len(one.times_s) for one in run.outcomes),
        "late_s": late_s,
        "limits": share > BUSY_SHARE or late_s["p99"] > LATE_S,
    }


def table(found: Mapping[str, Any]) -> str:
    """One screen, and what went wrong."""
    lines = [as_table(found)]
    if "goodput" in found:
        good = found["goodput"]
        limits = ", ".join(f"{name} {1000 * limit_s:g} ms" for name, limit_s in good["limits_s"].items())
        lines.append(f"  goodput {good['requests_per_s']:.2f} requests/s: {good['share']:.1%} of all kept {limits}")
    if "refusal_s" in found:
        lines.append(f"  refused within {1000 * found['refusal_s']['p50']:.1f} ms (p50), {1000 * found['refusal_s']['p99']:.1f} ms (p99)")
    if found["failed"]:
        lines.append(f"  {found['failed']:,} failed:")
        lines += [f"    {count:>6,} x {error}" for error, count in list(found["errors"].items())[:10]]
    client = found["client"]
    if client["limits"]:
        lines.append(
            f"  the client may have held this back: {client['cpu_share']:.0%} of a core, "
            f"sends {1000 * client['late_s']['p99']:.1f} ms late (p99)"
        )
    return "\n".join(lines)
