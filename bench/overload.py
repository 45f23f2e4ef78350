"""A server that is offered several times what it can do: whom it takes is served in time, and the others are told so at once.

    python -m bench.overload [--times 3] [--target-ms 1000] [--seconds 30] [--output-json FILE]

The server is `bench.paced`, so its capacity is known. First as many users as it takes ask it without a pause: that is the peak. Then
requests come at random times (Poisson), `--times` as many a second as it served at its peak, with `--admission-ttft-ms` at the target.
Each run is counted after `RAMP_S`. The exit code is 1 unless the P99 of the time to the first token is within the target, that of the
time to a refusal (429) within 50 ms, and the server made 95 % of the peak's tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.process import server
from octavo.bench.report import device_name, versions
from octavo.bench.serving.client import Ask, Outcome, Route, ask
from octavo.bench.serving.http import Address, Pool

PACE = {"step_s": 0.01, "token_s": 0.0001, "max_num_seqs": 32, "max_num_batched_tokens": 256}
USERS = 64  # at the peak: twice the rows
RAMP_S = 5.0
REFUSED_WITHIN_S, LEAST_OF_PEAK = 0.05, 0.95
PROMPT, OUTPUT = (32, 224), (16, 48)  # tokens, uniform
clock = time.perf_counter
Send = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Load:
    """What came of a load, counted after the ramp and until no more was sent."""

    outcomes: list[Outcome]
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def sent(self) -> list[Outcome]:
        return [one for one in self.outcomes if self.begin_s <= one.sent_s < self.end_s]

    @property
    def pieces_per_s(self) -> float:
        """Of text: nearly one a token, and the same share of them in every run."""
        return sum(self.begin_s <= at_s < self.end_s for one in self.outcomes for at_s in one.times_s) / self.seconds

    @property
    def ended_per_s(self) -> float:
        return sum(one.status == 200 and self.begin_s <= one.ended_s < self.end_s for one in self.outcomes) / self.seconds


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def drawn(draw: random.Random) -> Ask:
    return Ask([draw.randrange(3, 250) for _ in range(draw.randint(*PROMPT))], draw.randint(*OUTPUT))


async def _run(url: str, seconds: float, drive: Callable[[Send, float], Awaitable[None]]) -> Load:
    """`drive(send, until_s)` decides when `send` is called."""
    pool, route, draw = Pool(Address.parse(url), {}, clock), Route("/v1/completions", None, {"ignore_eos": True}), random.Random(1)
    outcomes: list[Outcome] = []

    async def send() -> None:
        outcomes.append(await ask(pool, route, route.body(drawn(draw)), clock(), clock, 600.0))

    begin_s = clock()
    end_s = begin_s + RAMP_S + seconds
    await drive(send, end_s)
    pool.close()
    return Load(outcomes, begin_s + RAMP_S, end_s)


async def at_peak(url: str, seconds: float, users: int = USERS) -> Load:
    async def one_user(send: Send, until_s: float) -> None:
        while clock() < until_s:
            await send()

    async def drive(send: Send, until_s: float) -> None:
        await asyncio.gather(*(one_user(send, until_s) for _ in range(users)))

    return await _run(url, seconds, drive)


async def at_rate(url: str, seconds: float, rate: float) -> Load:
    async def drive(send: Send, until_s: float) -> None:
        gaps, due_s = random.Random(2), clock()
        async with asyncio.TaskGroup() as group:
            while (due_s := due_s + gaps.expovariate(rate)) < until_s:
                await asyncio.sleep(max(0.0, due_s - clock()))
                group.create_task(send())

    return await _run(url, seconds, drive)


def judged(peak: Load, over: Load, target_s: float) -> dict[str, Any]:
    """The figures that matter, and what does not hold."""
    taken = [one for one in over.sent if one.status == 200]
    refused = [one for one in over.sent if one.status == 429]
    other = [one.error for one in over.sent if one.status not in (200, 429) or (one.status == 200 and one.error)]
    ttft_s = percentile([one.ttft_s for one in taken if one.times_s], 0.99)
    refusals_s = [one.ended_s - one.sent_s for one in refused]
    of_peak = over.pieces_per_s / peak.pieces_per_s
    told = [
        (not other, f"{len(other)} went wrong: {other[:3]}"),
        (ttft_s <= target_s, f"P99 of the time to the first token is {1000 * ttft_s:.0f} ms"),
        (percentile(refusals_s, 0.99) <= REFUSED_WITHIN_S, f"P99 of the time to a refusal is {1000 * percentile(refusals_s, 0.99):.0f} ms"),
        (of_peak >= LEAST_OF_PEAK, f"{of_peak:.1%} of the peak's tokens"),
    ]
    return {
        "peak_requests_per_s": round(peak.ended_per_s, 2), "offered_per_s": round(len(over.sent) / over.seconds, 2),
        "taken": len(taken), "refused": len(refused), "of_peak": round(of_peak, 4),
        "ttft_ms": {f"p{round(100 * share)}": round(1000 * percentile([one.ttft_s for one in taken if one.times_s], share), 1)
                    for share in (0.5, 0.9, 0.99)},
        "refused_after_ms": {"p50": round(1000 * percentile(refusals_s, 0.5), 1), "p99": round(1000 * percentile(refusals_s, 0.99), 1),
                             "max": round(1000 * max(refusals_s, default=0.0), 1)},
        "wrong": [text for good, text in told if not good],
    }  # fmt: skip


def overload(pace: dict[str, Any], times: float, target_ms: float, seconds: float) -> dict[str, Any]:
    with server(["-m", "bench.paced", json.dumps(pace)]) as running:
        peak = asyncio.run(at_peak(running.url, seconds))
    config = {"admission_ttft_ms": target_ms}
    with server(["-m", "bench.paced", json.dumps(pace), json.dumps(config)]) as running:
        over = asyncio.run(at_rate(running.url, seconds, times * peak.ended_per_s))
    return judged(peak, over, target_ms / 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--target-ms", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="that are counted, of each of the two runs")
    parser.add_argument("--output-json", type=Path)
    asked = parser.parse_args()
    result = overload(PACE, asked.times, asked.target_ms, asked.seconds)
    told = {"command": "python -m bench.overload " + " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    told |= {"device": device_name(), "cores": os.cpu_count(), "versions": versions(), "pace": PACE, "target_ms": asked.target_ms, **result}
    print(json.dumps(told))
    if asked.output_json:
        asked.output_json.write_text(json.dumps(told) + "\n", encoding="utf-8")
    for line in result["wrong"]:
        print(line, file=sys.stderr)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
