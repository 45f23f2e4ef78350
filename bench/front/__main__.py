"""What a token costs the API process: streams of a scripted engine, one token an event, read by clients in other processes.

    python -m bench.front [--streams 256] [--script text tools] [--seconds 8] [--api-server-count 1]
        [--output-json FILE]

Each script is run twice: at the pace of `--step-ms` for the processor time of a token (all threads of the API processes, as the kernel
counts it), with one process of clients, which has time to spare; and a quarter faster than that allows, with several, for events a second.
`text` is a completion with stop strings and characters that come in pieces; `tools` a chat of which half is calls of a tool, read by the
Hermes parser.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.front.client import CALLS, read_streams
from bench.front.scripted import script_ids
from octavo.bench.report import device_name, versions

START_S = 60.0
SETTLE_S = 2.0


@dataclass(frozen=True)
class Window:
    """What was counted over a while in which all streams ran."""

    seconds: float
    tokens_an_event: float
    events: int  # read by the clients
    cpu_s: list[float]  # of each API process
    kernel: float  # share of it in the kernel, as that samples it

    @property
    def result(self) -> dict[str, Any]:
        return {
            "us_per_token": round(1e6 * sum(self.cpu_s) / self.events / self.tokens_an_event, 2),
            "us_per_event": round(1e6 * sum(self.cpu_s) / self.events, 2),
            "tokens_per_s": round(self.events * self.tokens_an_event / self.seconds),
            "events_per_s": round(self.events / self.seconds),
            "kernel_share": round(self.kernel, 2),
            "load_of_each_process": [round(cpu_s / self.seconds, 3) for cpu_s in self.cpu_s],
        }


@contextmanager
def server(script: str, step_ms: float, num_processes: int) -> Iterator[tuple[str, list[int]]]:
    """The server's URL, and the ids of its API processes."""
    command = [sys.executable, "-m", "bench.front.server", script, str(step_ms), str(num_processes)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if ready := re.search(r"ready on (http://\S+?),", line):
                yield ready[1], api_processes(process.pid)
                break
            sys.stderr.write(line)
        else:
            raise RuntimeError("the server did not start")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def api_processes(pid: int) -> list[int]:
    """The first one's id, and its children's but for the last, which is the engine: it is started after them."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())][:-1]


def cpu_s(pid: int) -> float:
    """Processor time of all threads of another process, by its clock as clock_getcpuclockid(3) numbers it."""
    return time.clock_gettime((~pid << 3) | 2)


def cpu_ticks(pids: list[int]) -> tuple[int, int]:
    """Processor time of processes in programs and in the kernel, as proc_pid_stat(5) has it."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) for one in fields), sum(int(one[12]) for one in fields)


def tokens_an_event(url: str, script: str) -> float:
    """Some tokens make no event: those held back, and pieces of characters."""
    num_tokens = 20 * len(script_ids(script))
    path, body = CALLS[script]
    content = json.dumps(body | {"stream": True, "max_tokens": num_tokens}).encode()
    request = urllib.request.Request(url + path, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        return num_tokens / answer.read().count(b"\n\n")


def measure(script: str, step_ms: float, num_streams: int, num_clients: int, seconds: float, num_processes: int) -> Window:
    spawning = multiprocessing.get_context("spawn")
    with server(script, step_ms, num_processes) as (url, pids):
        ratio = tokens_an_event(url, script)
        counts = spawning.RawArray("Q", num_clients)
        shares = [len(range(place, num_streams, num_clients)) for place in range(num_clients)]
        clients = [
            spawning.Process(target=read_streams, args=(url, script, share, counts, place), daemon=True)
            for place, share in enumerate(shares)
        ]
        try:
            for client in clients:
                client.start()
            end_s = time.monotonic() + START_S
            while not all(counts):
                assert time.monotonic() < end_s, "no event has come"
                time.sleep(0.05)
            time.sleep(SETTLE_S)
            begin_ticks = cpu_ticks(pids)
            begin_s, begin_events, begin_cpu_s = time.monotonic(), sum(counts), [cpu_s(pid) for pid in pids]
            time.sleep(seconds)
            end_s, end_events, end_cpu_s = time.monotonic(), sum(counts), [cpu_s(pid) for pid in pids]
            taken = [end - begin for end, begin in zip(end_cpu_s, begin_cpu_s)]
            user, system = (end - begin for end, begin in zip(cpu_ticks(pids), begin_ticks))
            return Window(end_s - begin_s, ratio, end_events - begin_events, taken, system / max(1, user + system))
        finally:
            for client in clients:
                client.kill()
                client.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--script", nargs="+", choices=("text", "tools"), default=("text", "tools"))
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--clients", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)), help="processes of clients")
    parser.add_argument("--paced-clients", type=int, default=1, help="the same at the pace")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--step-ms", type=float, default=25.0, help="time of a step where processor time is measured")
    parser.add_argument("--api-server-count", type=int, default=1, help="API processes")
    parser.add_argument("--output-json", type=Path)
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    for script in asked.script:
        common = asked.seconds, asked.api_server_count
        paced = measure(script, asked.step_ms, asked.streams, asked.paced_clients, *common).result
        fastest_ms = asked.streams * paced["us_per_token"] / 1250 / asked.api_server_count
        full = measure(script, fastest_ms, asked.streams, asked.clients, *common).result
        results[script] = {"paced": paced, "full": full}
        print(script, json.dumps(results[script]), file=sys.stderr)
    told = {"command": "python -m bench.front " + " ".join(sys.argv[1:]), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    told |= {"device": device_name(), "cores": os.cpu_count(), "versions": versions(), "streams": asked.streams}
    told |= {"api_processes": asked.api_server_count, "results": results}
    print(json.dumps(told))
    if asked.output_json:
        asked.output_json.write_text(json.dumps(told) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
