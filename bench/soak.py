"""Many requests of every kind at one server: its memory stays flat, no block is lost, and its counts add up.

    python -m bench.soak [--engine paced|real] [--requests 20000] [--output-json FILE] [-- FLAGS OF octavo serve]

The kinds are mixed by one seed: short and long ones, streams, several texts at once, JSON by a schema, such as cannot be run, and such
whose client leaves, before anything has come or in the middle. `paced` is `bench.paced`, whose steps take a millisecond; `real` is
`octavo serve`. First come as many of the largest as there will ever be requests at once: memory that a server has for its largest steps is
the machine's until it is written to, which would look like growth whenever a step is larger than all before. After a warm-up of a fifth
the memory of each process is compared with that of the last tenth. The exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.process import Server, server
from octavo.bench.report import device_name, versions
from octavo.bench.serving.http import Address, Pool

COMMANDS = {
    "paced": ["-m", "bench.paced"],
    "real": ["-m", "octavo", "serve", "--port", "0", "--max-model-len", "512", "--kv-cache-memory-bytes", "64M", "--disable-log-stats"],
}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WARMING, LAST = 0.2, 0.1  # shares of the requests
READINGS = 400  # of memory
MOST_GROWTH = 0.02
LEAVES_S = 0.02  # before anything has come
SETTLE_S = 20.0  # for what clients have left to end
TEXT = "the engine reads a prompt and writes what comes after it one token at a time until somebody says that it is enough"


@dataclass
class Answer:
    """Hears one answer; `first` is set when something of it has come."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def began(self, status: int) -> None:
        self.status = status

    def came(self, now_s: float, data: bytes) -> None:
        self.body += data
        self.first.set()


@dataclass(frozen=True)
class Kind:
    """Requests of a kind: how they look, what is right to come back, and how long their client stays."""

    route: str
    body: Callable[[random.Random], dict[str, Any]]
    check: Callable[[dict[str, Any], Answer], str | None]  # what is wrong with an answer
    leaves: str | None = None  # "before" anything has come, or in the "middle"
    valid: bool = True


def prompt(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(TEXT.split(), k=draw.randint(least, most)))


def whole(asked: dict[str, Any], answer: Answer) -> str | None:
    if answer.status != 200:
        return f"status {answer.status}: {bytes(answer.body[:200])!r}"
    choices = json.loads(answer.body)["choices"]
    reasons = {choice["finish_reason"] for choice in choices}
    return None if len(choices) == asked.get("n", 1) and reasons <= {"stop", "length"} else f"{len(choices)} choices, {reasons}"


def streamed(asked: dict[str, Any], answer: Answer) -> str | None:
    text = bytes(answer.body)
    good = answer.status == 200 and text.endswith(b"data: [DONE]\n\n") and re.search(rb'"finish_reason":"(stop|length)"', text)
    return None if good else f"status {answer.status}, a stream that ends with {text[-200:]!r}"


def fits_schema(asked: dict[str, Any], answer: Answer) -> str | None:
    if wrong := whole(asked, answer):
        return wrong
    (choice,) = json.loads(answer.body)["choices"]
    if choice["finish_reason"] == "length":
        return None
    (name,) = asked["response_format"]["json_schema"]["schema"]["required"]
    return None if isinstance(json.loads(choice["message"]["content"])[name], int) else f"not by the schema: {choice}"


def refused(asked: dict[str, Any], answer: Answer) -> str | None:
    return None if answer.status == 400 else f"status {answer.status} for {asked}"


def structured_body(draw: random.Random) -> dict[str, Any]:
    name = f"field{draw.randrange(10_000)}"  # more schemas than anybody keeps
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    return {"messages": [{"role": "user", "content": prompt(draw, 1, 5)}], "max_tokens": 24, "response_format": form}


def short_body(draw: random.Random) -> dict[str, Any]:
    more = draw.choice([{}, {"stop": ["enough", "\n\n"]}, {"logprobs": 2}, {"echo": True}, {"user": f"user {draw.randrange(10_000)}"}])
    return {"prompt": prompt(draw, 1, 6), "max_tokens": draw.randint(1, 4), "seed": draw.randrange(1 << 30), **more}


def long_body(draw: random.Random) -> dict[str, Any]:
    return {"prompt": prompt(draw, 40, 120), "max_tokens": draw.randint(8, 24), "temperature": 0}


def stream_body(draw: random.Random) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": prompt(draw, 1, 6)}]}
    return {**said, "max_tokens": draw.randint(2, 8), "stream": True, "stream_options": {"include_usage": True}}


def several_body(draw: random.Random) -> dict[str, Any]:
    return {"prompt": prompt(draw, 1, 30), "max_tokens": draw.randint(1, 6), "n": draw.randint(2, 4), "temperature": 1.0}


def largest_body(draw: random.Random) -> dict[str, Any]:
    return {"prompt": prompt(draw, 120, 120), "max_tokens": 24, "ignore_eos": True, "n": 4, "temperature": 1.0, "logprobs": 2}


def left_body(draw: random.Random) -> dict[str, Any]:
    return {"prompt": prompt(draw, 1, 40), "max_tokens": 200, "ignore_eos": True, "n": draw.choice([1, 1, 2])}


def bad_body(draw: random.Random) -> dict[str, Any]:
    wrong = [
        {"temperature": -1}, {"max_tokens": "many"}, {"n": 0}, {"prompt": [-1]}, {"stop": [""]}, {"logit_bias": {"9999999": 1}},
        {"prompt": [5] * 5000}, {"response_format": {"type": "xml"}}, {"structured_outputs": {"regex": f"({draw.random()}"}},
    ]  # fmt: skip
    return {"prompt": prompt(draw, 1, 6), **draw.choice(wrong)}


KINDS = {  # name -> how often in a hundred, and what
    "short": (40, Kind(COMPLETIONS, short_body, whole)),
    "long": (4, Kind(COMPLETIONS, long_body, whole)),
    "stream": (20, Kind(CHAT, stream_body, streamed)),
    "several": (10, Kind(COMPLETIONS, several_body, whole)),
    "structured": (8, Kind(CHAT, structured_body, fits_schema)),
    "invalid": (10, Kind(COMPLETIONS, bad_body, refused, valid=False)),
    "largest": (0, Kind(COMPLETIONS, largest_body, whole)),  # only at the beginning
    "left before": (4, Kind(COMPLETIONS, left_body, streamed, leaves="before")),
    "left in the middle": (4, Kind(COMPLETIONS, lambda draw: {**left_body(draw), "stream": True}, streamed, leaves="middle")),
}


@dataclass
class Soak:
    """The course of one run, as the client sees it."""

    server: Server
    seed: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)  # to their ends, as is right
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[int, dict[str, int]]] = field(default_factory=list)  # requests sent, bytes of each process

    async def run(self, num_requests: int, concurrency: int) -> None:
        numbers = iter(range(num_requests))
        pool = Pool(Address.parse(self.server.url), {})
        every = max(1, num_requests // READINGS)
        await asyncio.gather(*(self._send_kind("largest", random.Random(f"{self.seed} largest {n}"), pool) for n in range(concurrency)))
        await asyncio.gather(*(self._send_all(numbers, pool, every) for _ in range(concurrency)))
        pool.close()

    async def _send_all(self, numbers: Iterable[int], pool: Pool, every: int) -> None:
        for number in numbers:
            draw = random.Random(f"{self.seed} {number}")
            (name,) = draw.choices(list(KINDS), weights=[share for share, _ in KINDS.values()])
            await self._send_kind(name, draw, pool)
            if number % every == 0:
                self.memory.append((number, self.server.resident_bytes()))

    async def _send_kind(self, name: str, draw: random.Random, pool: Pool) -> None:
        self.sent[name] += 1
        kind = KINDS[name][1]
        asked, answer = kind.body(draw), Answer()
        sending = asyncio.ensure_future(pool.request("POST", kind.route, json.dumps(asked).encode(), answer))
        if kind.leaves is not None:
            first = asyncio.ensure_future(answer.first.wait())
            patience_s = LEAVES_S if kind.leaves == "before" else None
            await asyncio.wait([first, sending], timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if sending.cancel():
                await asyncio.wait([sending])
                return
        try:
            await sending
        except OSError as error:
            self.wrong.append(f"{name}: {error}")
            return
        check = kind.check if kind.leaves != "before" else whole  # it was answered before its client could leave
        if (wrong := check(asked, answer)) is not None:
            self.wrong.append(f"{name}: {wrong}")
        else:
            self.answered[name] += 1


def growth(memory: list[tuple[int, dict[str, int]]], num_requests: int) -> dict[str, dict[str, float]]:
    """Of each process: medians in MB after the warm-up and at the end, and how much they differ."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for _, each in memory for name in each):
        warm = [each[name] for number, each in memory if WARMING <= number / num_requests < WARMING + LAST and name in each]
        last = [each[name] for number, each in memory if number / num_requests >= 1 - LAST and name in each]
        before, after = statistics.median(warm), statistics.median(last)
        found[name.split()[0]] = {"warm_mb": before / 1e6, "last_mb": after / 1e6, "growth": after / before - 1}
    return found


def read_counts(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Gauges and counts by name, and the finished by reason."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    values = {name: float(value) for name, value in re.findall(r"^octavo:(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)}
    reasons = re.findall(r'^octavo:request_success_total\{.*finished_reason="(\w+)".*\} (\S+)$', text, re.MULTILINE)
    return values, {reason: float(value) for reason, value in reasons}


def settled_counts(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """When nothing runs any more, or when that does not come to be."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        values, reasons = read_counts(url)
        idle = values["num_requests_running"] == values["kv_cache_usage_perc"] == 0
        if time.monotonic() > end_s or (idle and values["requests_started_total"] == sum(reasons.values())):
            return values, reasons
        time.sleep(0.2)


def complaints(soak: Soak, values: dict[str, float], reasons: dict[str, float]) -> list[str]:
    """What does not add up."""
    valid = sum(count for name, count in soak.sent.items() if KINDS[name][1].valid)
    leaving = sum(count for name, count in soak.sent.items() if KINDS[name][1].leaves) - sum(
        count for name, count in soak.answered.items() if KINDS[name][1].leaves
    )
    answered = sum(count for name, count in soak.answered.items() if KINDS[name][1].valid)
    ended, started = reasons["stop"] + reasons["length"], values["requests_started_total"]
    told = [
        (started == sum(reasons.values()), f"{started:g} started, finished by reason {reasons}"),
        (valid - leaving <= started <= valid, f"{valid} valid requests sent, {leaving} of them left, {started:g} started"),
        (answered <= ended <= answered + leaving, f"{answered} answered, {leaving} left, {ended:g} ended by stop or length"),
        (reasons["abort"] <= leaving, f"{reasons['abort']:g} aborted, {leaving} left"),
        (reasons["error"] == 0, f"{reasons['error']:g} ended by an error"),
        (values["kv_cache_usage_perc"] == 0, f"{values['kv_cache_usage_perc']:.2%} of the blocks are still in use"),
        (values["num_requests_running"] + values["num_requests_waiting"] == 0, "the engine still has requests"),
        (values["failed_steps_total"] == 0, f"{values['failed_steps_total']:g} steps failed"),
    ]
    return soak.wrong[:5] + [text for good, text in told if not good]


def soak(command: list[str], num_requests: int, concurrency: int, seed: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Run one; the result, and what was wrong but for memory."""
    with server(command) as running:
        course = Soak(running, seed)
        begin_s = time.monotonic()
        asyncio.run(course.run(num_requests, concurrency))
        seconds = time.monotonic() - begin_s
        values, reasons = settled_counts(running.url)
        wrong = complaints(course, values, reasons)
        if code := running.stop():
            wrong.append(f"the server ended with code {code}: {''.join(running.log)[-1000:]}")
    result = {
        "requests": num_requests, "concurrency": concurrency, "seconds": round(seconds, 1), "sent": dict(course.sent),
        "answered": dict(course.answered), "started": values["requests_started_total"], "finished": reasons,
        "steps": values["engine_steps_total"], "preemptions": values["num_preemptions_total"],
        "memory": growth(course.memory, num_requests), "wrong": wrong,
    }  # fmt: skip
    return result, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=COMMANDS, default="paced")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("flags", nargs="*", help="of octavo serve, after --")
    asked = parser.parse_args()
    result, wrong = soak([*COMMANDS[asked.engine], *asked.flags], asked.requests, asked.concurrency, asked.seed)
    grown = [f"{name} grew by {one['growth']:.1%}" for name, one in result["memory"].items() if one["growth"] >= MOST_GROWTH]
    told = {"command": "python -m bench.soak " + " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    told |= {"device": device_name(), "cores": os.cpu_count(), "versions": versions(), "engine": asked.engine, **result}
    print(json.dumps(told))
    if asked.output_json:
        asked.output_json.write_text(json.dumps(told) + "\n", encoding="utf-8")
    for line in [*wrong, *grown]:
        print(line, file=sys.stderr)
    return 1 if wrong or grown else 0


if __name__ == "__main__":
    sys.exit(main())
