"""Several API processes on one port: they answer for each other, and none outlives another."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.serve.test_process import children, running

WAIT_S = 30.0
NUM_CALLS = 12


@contextmanager
def command(num_processes: int = 2) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A server of a scripted engine: the first process, its URL, and its children: the further API processes, then the engine."""
    words = [sys.executable, "-m", "bench.front.server", "text", "5", str(num_processes)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    others: list[int] = []
    try:
        told = ""
        for line in process.stderr:
            told += line
            if ready := re.search(r"ready on (http://\S+?),", line):
                others = children(process.pid)
                yield process, ready[1], others
                break
        else:
            raise AssertionError(told)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        wait_until_gone(others)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_until_gone(pids: list[int]) -> None:
    eventually(lambda: not any(map(running, pids)))


def num_sockets(pid: int) -> int:
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd") if name.isdigit()]
    return sum(link.startswith("socket:") for link in links)


def value(text: str, name: str) -> float:
    return float(re.findall(rf"^octavo:{name}\{{.*\}} (\S+)", text, re.M)[0])


def test_a_scrape_at_any_process_tells_of_all() -> None:
    with command() as (process, url, (other, _)), ExitStack() as open_:
        clients = [open_.enter_context(httpx.Client()) for _ in range(NUM_CALLS)]  # a connection each
        before = {pid: num_sockets(pid) for pid in (process.pid, other)}
        body = {"prompt": "Say it", "stream": True, "max_tokens": 1 << 20}
        lines: list[Iterator[str]] = []  # one that nobody holds closes its stream
        with ExitStack() as streams:
            for client in clients:
                lines.append(streams.enter_context(client.stream("POST", url + "/v1/completions", json=body)).iter_lines())
                next(lines[-1])
            assert all(num_sockets(pid) > before[pid] for pid in before), "the kernel spreads them"
            for _ in range(NUM_CALLS):
                assert httpx.get(url + "/load").json()["server_load"] == NUM_CALLS
        for client in clients:
            assert client.post(url + "/v1/completions", json={"prompt": "Say it", "max_tokens": 3}).status_code == 200
        eventually(lambda: httpx.get(url + "/load").json()["server_load"] == 0)
        told = set()
        for _ in range(NUM_CALLS):
            text = httpx.get(url + "/metrics").text
            assert value(text, "requests_started_total") == value(text, "time_to_first_token_seconds_count") == 2 * NUM_CALLS
            assert value(text, "e2e_request_latency_seconds_count") == 2 * NUM_CALLS
            told.add(value(text, "generation_tokens_total"))
        assert len(told) == 1
        assert len({httpx.get(url + "/v1/models").text for _ in clients}) == 1


@pytest.mark.parametrize("victim", ["first", "further", "engine"])
def test_a_death_ends_all(victim: str) -> None:
    with command() as (process, url, others):
        pid = {"first": process.pid, "further": others[0], "engine": others[-1]}[victim]
        body = {"prompt": "Say it", "stream": True, "max_tokens": 1 << 20}
        with httpx.stream("POST", url + "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            wait_until_gone([other for other in others if other != pid])
        assert process.wait(WAIT_S) == (-signal.SIGKILL if victim == "first" else 1)


def test_a_stop_lets_requests_finish_in_every_process() -> None:
    with command() as (process, url, others):
        body = {"prompt": "Say it", "stream": True, "max_tokens": 300}
        with httpx.Client() as client, httpx.Client() as second, httpx.Client() as third, httpx.Client() as fourth:
            streams = [one.send(one.build_request("POST", url + "/v1/completions", json=body), stream=True) for one in
                       (client, second, third, fourth)]  # fmt: skip
            process.send_signal(signal.SIGTERM)
            for stream in streams:
                lines = list(stream.iter_lines())
                assert lines[-2] == "data: [DONE]"
                assert '"finish_reason":"length"' in lines[-4]
        assert process.wait(WAIT_S) == 0
        wait_until_gone(others)
