"""The whole server as a user starts it: the command, the bundled model, processes that end together."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI

WAIT_S = 120.0


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Command(subprocess.Popen[str]):
    told: list[str]  # lines of its log, until it was ready


@contextmanager
def command(*flags: str) -> Iterator[tuple[Command, str, list[int]]]:
    """`octavo serve` on a free port: the process, its URL and its children, which are gone afterwards."""
    words = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--max-model-len", "512", *flags]
    process = Command(words, stderr=subprocess.PIPE, text=True)
    process.told = []
    engines: list[int] = []
    assert process.stderr is not None
    try:
        for line in process.stderr:
            process.told.append(line)
            if ready := re.search(r"ready on (http://\S+?),", line):
                engines = children(process.pid)
                yield process, ready[1], engines
                break
        else:
            raise AssertionError("".join(process.told))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        end = time.monotonic() + WAIT_S
        while any(map(running, engines)):
            assert time.monotonic() < end, "a process outlived its parent"
            time.sleep(0.05)


def check_what_a_start_says(log: str, metrics: str) -> None:
    """The memory budget, the value that gives it again, loading rate, attention backend, and where the seconds went."""
    for words in ("weights  ", "KV cache  ", "total  ", "--kv-cache-memory-bytes ", "attention by cpu", "GB/s", "ready: open checkpoint"):
        assert words in log
    stages = dict(re.findall(r'^octavo:startup_seconds\{.*stage="(.*?)"\} (\S+)', metrics, re.MULTILINE))
    assert {"open checkpoint", "import torch", "build model", "load weights"} <= set(stages)
    assert all(float(seconds) >= 0 for seconds in stages.values())


def check_other_forms(api: openai.OpenAI, base_url: str) -> None:
    """The same model as responses, vectors, and behind LangChain's class."""
    question = "What is the capital of France?"
    assert "Paris" in api.responses.create(model="small", input=question, max_output_tokens=20, temperature=0).output_text
    assert "Paris" in ChatOpenAI(model="small", base_url=base_url, api_key="x", temperature=0, max_tokens=20).invoke(question).text  # pyright: ignore
    texts = [question, "Paris is the capital of France.", "Mix flour and eggs."]
    query, near, far = (one.embedding for one in api.embeddings.create(model="small", input=texts).data)
    assert len(query) == 576
    assert sum(a * b for a, b in zip(query, near)) > sum(a * b for a, b in zip(query, far))


README = Path(__file__).parents[2] / "README.md"


def check_curl(url: str) -> None:
    """What README shows, a stream and an error, from a shell."""
    command, shown = re.search(r"^    (curl .*?)\n\nanswers\n\n```json\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL).groups()  # pyright: ignore
    script = f"""
        set -e
        {command.replace("http://127.0.0.1:8000", url)}
        echo
        curl -sSN {url}/v1/completions -d '{{"prompt": "The capital of France is", "max_tokens": 3, "temperature": 0, "stream": true}}'
        curl -sS -w '%{{http_code}}' {url}/v1/completions -d '{{"prompt": "a", "temperature": -1}}'
    """
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    answer, *events, done, error = [line for line in told.splitlines() if line]
    given, promised = json.loads(answer), json.loads(shown)
    assert given["choices"] == promised["choices"]
    assert list(given) == list(promised)
    assert given["octavo"].keys() == promised["octavo"].keys()
    assert "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events).startswith(" Paris")
    assert done == "data: [DONE]"
    assert error.endswith("}400")
    assert json.loads(error.removesuffix("400"))["error"]["param"] == "temperature"


def test_the_bundled_model_answers_and_all_ends_on_a_signal() -> None:
    with command("--served-model-name", "small") as (process, url, engines), openai.OpenAI(base_url=f"{url}/v1", api_key="x") as api:
        assert len(engines) == 1
        text = api.completions.create(model="small", prompt="The capital of France is", max_tokens=12, temperature=0).choices[0].text
        assert "Paris" in text
        question = [{"role": "user", "content": "What is the capital of France?"}]
        whole = api.chat.completions.create(model="small", messages=question, max_tokens=20, temperature=0)  # pyright: ignore
        stream = api.chat.completions.create(model="small", messages=question, max_tokens=20, temperature=0, stream=True)  # pyright: ignore
        assert "Paris" in (whole.choices[0].message.content or "")
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
        echo = (
            api.completions.create(model="small", prompt="The capital of France", max_tokens=1, echo=True, logprobs=1).choices[0].logprobs
        )
        assert echo is not None
        assert echo.token_logprobs is not None
        assert echo.token_logprobs[0] is None
        assert all(value is not None and value <= 0 for value in echo.token_logprobs[1:])
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512"):
            api.completions.create(model="small", prompt=[5] * 512)
        check_other_forms(api, f"{url}/v1")
        if shutil.which("curl") is not None:  # not every machine has it, and the rest holds without it
            check_curl(url)
        metrics = httpx.get(f"{url}/metrics").text
        for name in ("iteration_tokens_total_bucket", "batch_size_bucket", "prefix_cache_queries_total", "prefix_cache_misses_total"):
            assert f"octavo:{name}" in metrics, "the engine's own readings come through"
        check_what_a_start_says("".join(process.told), metrics)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


SMALL = ("--load-format", "dummy", "--hf-overrides.num_hidden_layers", "1", "--kv-cache-memory-bytes", "64M")
TOGETHER_S = 5.0  # after the death of one


@pytest.mark.parametrize(("victim", "number"), [("front", 0), ("engine", 1), ("worker", 2)])
def test_the_death_of_any_one_ends_all_others(victim: str, number: int) -> None:
    """Nothing runs at that time: an idle process notices too."""
    with command(*SMALL, "--distributed-executor-backend", "mp") as (process, _, engines):
        processes = [process.pid, *engines, *(worker for engine in engines for worker in children(engine))]
        assert len(processes) == 3
        os.kill(processes[number], signal.SIGKILL)
        end = time.monotonic() + TOGETHER_S
        while alive := [pid for pid in processes if running(pid)]:
            assert time.monotonic() < end, f"{alive} of {processes} outlived the {victim}"
            time.sleep(0.05)
            process.poll()
        assert process.wait() == (1 if number else -signal.SIGKILL)


def kv_use(url: str) -> float:
    found = re.search(r"^octavo:kv_cache_usage_perc\{.*?\} (\S+)", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


CALLS = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 400, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "ignore_eos": True}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 400}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400}),
]


def test_the_life_of_a_server_with_a_real_engine() -> None:
    """Who leaves frees blocks; an engine that is stopped is told and waited for; SIGTERM ends what takes longer than the deadline."""
    flags = ("--stall-timeout", "3", "--shutdown-timeout", "0.2")
    with command(*SMALL, *flags) as (process, url, engines), httpx.Client(timeout=WAIT_S) as http:
        for path, body in CALLS:
            with http.stream("POST", url + path, json={**body, "stream": True}) as response:
                next(response.iter_lines())
            until(lambda: kv_use(url) == 0.0, f"blocks of {path} are kept for a client that has left")

        with http.stream("POST", url + CALLS[0][0], json={**CALLS[0][1], "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(engines[0], signal.SIGSTOP)
            until(lambda: http.get(url + "/health/ready").status_code == 503, "a stopped engine is not told")
            assert "no step of the engine has ended" in http.get(url + "/health/ready").json()["reason"]
            assert http.get(url + "/health/live").status_code == 200
            os.kill(engines[0], signal.SIGCONT)
            assert list(lines)[-2] == "data: [DONE]"
        until(lambda: http.get(url + "/health/ready").status_code == 200, "it gets on, and is not ready")

        with http.stream("POST", url + CALLS[0][0], json={**CALLS[0][1], "n": 8, "temperature": 1, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            told = list(lines)
        assert told[-2] == "data: [DONE]"
        assert '"finish_reason":"abort"' in "".join(told[-40:])
        assert process.wait(WAIT_S) == 0
