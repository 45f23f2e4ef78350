"""The whole server as a user starts it: the command, the bundled model, processes that end together."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

WAIT_S = 120.0


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def command(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """`octavo serve` on a free port: the process, its URL and its children, which are gone afterwards."""
    words = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--max-model-len", "512", *flags]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    engines: list[int] = []
    assert process.stderr is not None
    try:
        told: list[str] = []
        for line in process.stderr:
            told.append(line)
            if ready := re.search(r"ready on (http://\S+?),", line):
                engines = children(process.pid)
                yield process, ready[1], engines
                break
        else:
            raise AssertionError("".join(told))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        end = time.monotonic() + WAIT_S
        while any(map(running, engines)):
            assert time.monotonic() < end, "a process outlived its parent"
            time.sleep(0.05)


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
        metrics = httpx.get(f"{url}/metrics").text
        for name in ("iteration_tokens_total_bucket", "batch_size_bucket", "prefix_cache_queries_total", "prefix_cache_misses_total"):
            assert f"octavo:{name}" in metrics, "the engine's own readings come through"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_no_process_outlives_a_killed_front() -> None:
    with command() as (process, _, engines):
        assert all(map(running, engines))
        process.kill()


def test_a_killed_engine_ends_the_server() -> None:
    with command() as (process, _, engines):
        for engine in engines:
            Path(f"/proc/{engine}").stat()
            subprocess.run(["kill", "-9", str(engine)], check=True)
        assert process.wait(WAIT_S) == 1
