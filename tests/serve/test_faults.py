"""What goes wrong around a server, with a clear outcome each: processes that die or hang, a full disk, clients that never read or ask."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from bench.process import Server, descendants, server
from octavo.serve import http, writer
from tests.scripted_engine import Script
from tests.serve.serving import served
from tests.serve.test_launch import eventually
from tests.serve.test_process import SMALL, command, running, until

PACED = ["-m", "bench.paced", json.dumps({"step_s": 0.02})]
LONG = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True}


class Reading(threading.Thread):
    """A client of a long answer, streamed or not."""

    def __init__(self, url: str, stream: bool) -> None:
        super().__init__(daemon=True)
        self._url, self._stream = url, stream
        self.begun = threading.Event()
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        body = {**LONG, "stream": self._stream}
        try:
            with httpx.Client(timeout=60) as client, client.stream("POST", self._url + "/v1/completions", json=body) as response:
                self.status = response.status_code
                for piece in response.iter_text():
                    self.text += piece
                    self.begun.set()
        except httpx.HTTPError as error:
            self.text += repr(error)


@contextmanager
def loaded() -> Iterator[tuple[Server, list[int], list[Reading]]]:
    """A server at work, with its processes, the front first, and its clients: three streams and an answer that comes whole."""
    with server(PACED) as one:
        readers = [Reading(one.url, True) for _ in range(3)] + [Reading(one.url, False)]
        for reader in readers[:3]:
            assert reader.begun.wait(30)
        until(lambda: httpx.get(one.url + "/load").json()["server_load"] == 4, "all run")
        yield one, descendants(one.process.pid), readers


def all_gone(pids: list[int]) -> None:
    end_s = time.monotonic() + 30
    while any(map(running, pids)):
        assert time.monotonic() < end_s, "a process outlived the others"
        time.sleep(0.02)


def test_an_engine_that_is_killed_is_told_to_every_client_and_ends_the_server() -> None:
    with loaded() as (one, pids, readers):
        os.kill(pids[1], signal.SIGKILL)
        for reader in readers:
            reader.join(30)
        for reader in readers[:3]:
            *_, failure, done, _ = reader.text.split("\n\n")
            assert "signal 9" in json.loads(failure.removeprefix("data: "))["error"]["message"]
            assert done == "data: [DONE]"
        assert readers[3].status == 503
        assert "signal 9" in json.loads(readers[3].text)["error"]["message"]
        assert one.process.wait(30) == 1
        all_gone(pids)


def test_a_front_that_is_killed_at_work_leaves_no_process() -> None:
    with loaded() as (one, pids, _):
        one.process.kill()
        one.process.wait()
        all_gone(pids)


def test_a_second_signal_hurries_an_end_that_stays_orderly() -> None:
    with loaded() as (one, pids, readers):
        one.process.terminate()
        time.sleep(0.2)
        assert running(pids[0]), "the first one lets requests finish"
        one.process.terminate()
        assert one.process.wait(30) == 0
        for reader in readers:
            reader.join(30)
            assert '"finish_reason":"abort"' in reader.text
        all_gone(pids)


def test_a_worker_that_hangs_is_named_and_ends_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the server is not ready, with the reason; after the time-out of a step all ends, and who hung is said."""
    monkeypatch.setenv("OCTAVO_EXECUTE_MODEL_TIMEOUT_SECONDS", "6")
    flags = ("--distributed-executor-backend", "mp", "--stall-timeout", "1")
    with command(*SMALL, *flags) as (process, url, engines), httpx.Client(timeout=60) as client:
        (worker,) = descendants(engines[0])[1:]
        body = {**LONG, "prompt": [5], "max_tokens": 400, "stream": True}
        with client.stream("POST", url + "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(worker, signal.SIGSTOP)
            until(lambda: client.get(url + "/health/ready").status_code == 503, "a hung worker is not told")
            assert "no step of the engine has ended" in client.get(url + "/health/ready").json()["reason"]
            told = "\n".join(lines)
        assert re.search(rf'"error":.*no outcome within 6 s .*worker 0 \(process {worker}\) (launches|has launched) step \d+', told)
        assert process.wait(60) == 1
        all_gone([*engines, worker])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_serving_goes_on_where_the_log_takes_no_more() -> None:
    port = free_port()
    config = {"port": port, "enable_log_requests": True, "disable_uvicorn_access_log": False, "uvicorn_log_level": "info"}
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([sys.executable, *PACED, json.dumps(config)], stdout=full, stderr=full)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(url), "the server starts")
        for _ in range(20):
            assert httpx.post(url + "/v1/completions", json={"prompt": "a", "max_tokens": 1}, timeout=30).status_code == 200
        assert httpx.post(url + "/v1/completions", json={"prompt": -1}).status_code == 400
        assert httpx.get(url + "/health/ready").status_code == 200
    finally:
        process.terminate()
        assert process.wait(30) in (0, 120), "120: the interpreter could not write its last word"


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_child_whose_log_takes_no_more_still_tells_its_parent_what_went_wrong() -> None:
    program = "from octavo.engine.process import Status, end_with; end_with(Status(1), ValueError('out of luck'))"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert json.loads(ended.stdout)["error"] == "ValueError: out of luck"
    assert ended.returncode == 1


@contextmanager
def asking(url: str, body: dict) -> Iterator[socket.socket]:
    """A client that asks and then does what it likes."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((host, int(port)))
        one.sendall(head + content)
        yield one


def test_a_client_that_does_not_read_holds_nobody_up_and_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for it is bounded, however long its answer."""
    monkeypatch.setattr(writer, "MAX_KEPT_BYTES", 300_000)
    say = Script(["x" * 20_000], forever=True, step_s=0.002)
    with served(lambda request, index: say if request.prompt_token_ids[-1] == ord("!") else Script()) as one:
        with asking(one.url, {"prompt": "a!", "max_tokens": 120, "n": 4, "seed": 1, "stream": True}):
            eventually(lambda: one.front.running)
            assert httpx.post(one.url + "/v1/completions", json={"prompt": "a"}).json()["choices"][0]["text"] == "Hello, world!"
            eventually(lambda: not one.engine.active)
            eventually(lambda: not one.front.running)
        assert one.front.metrics.finished["abort"] == 1
        assert one.front.metrics.generation_tokens < 400, "it was given up in the middle"
        assert httpx.post(one.url + "/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_client_that_reads_late_gets_everything() -> None:
    say = Script(["x" * 20_000], forever=True)
    with served(say) as one, asking(one.url, {"prompt": "a", "max_tokens": 100, "stream": True}) as client:
        eventually(lambda: one.engine.requests and not one.engine.active)
        text = b""
        client.settimeout(20)
        while not text.endswith(b"0\r\n\r\n"):
            text += client.recv(1 << 20)
        assert text.count(b"x") >= 100 * 20_000
        assert b"data: [DONE]" in text[-40:]


SILENT: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a head": lambda: b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n",
    "half a body": lambda: b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt"',
    "a second half": lambda: b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/completions HTTP/1.1\r\n",
}


@pytest.mark.parametrize("said", SILENT)
def test_a_connection_that_does_not_finish_its_request_is_closed(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    with served() as one, ExitStack() as stack:
        host, port = one.url.removeprefix("http://").split(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
        for each in silent:
            each.sendall(SILENT[said]())
        assert httpx.post(one.url + "/v1/completions", json={"prompt": "a"}).status_code == 200
        for each in silent:
            each.settimeout(20)
            while each.recv(1 << 16):
                pass
        assert not one.front.running


def test_an_answer_may_take_longer_than_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.1)
    with served(Script(prefill_s=0.5)) as one, httpx.Client(timeout=20) as client:
        for _ in range(2):
            assert client.post(one.url + "/v1/completions", json={"prompt": "a"}).status_code == 200


def test_more_clients_are_taken_than_the_usual_limit_of_files() -> None:
    program = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096)); sys.argv = ['']"
    with server(["-c", f"{program}; runpy.run_module('bench.paced', run_name='__main__')"]) as one, ExitStack() as stack:
        host, port = one.url.removeprefix("http://").split(":")
        for _ in range(150):
            stack.enter_context(socket.create_connection((host, int(port))))
        until(lambda: len(list(Path(f"/proc/{one.process.pid}/fd").iterdir())) > 150, "all are taken")
        assert httpx.post(one.url + "/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_metrics_need_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the environment names a folder for them that nobody can write to."""
    for variable in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        monkeypatch.setenv(variable, "/proc/nowhere")
    with server(PACED) as one:
        assert httpx.post(one.url + "/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert re.search(r'octavo:request_success_total\{.*"length".*\} 1.0', httpx.get(one.url + "/metrics").text)
