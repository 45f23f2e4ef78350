"""`octavo bench serve` against a scripted server, and against Octavo's own front."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import main, split
from octavo.simulate.load import Trace
from tests.bench.serving.scripted_server import Reply, event, scripted, stream
from tests.scripted_engine import Script
from tests.serve.serving import served

SMALL = ("--num-prompts", "6", "--input-len", "8", "--output-len", "3")


def bench(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["bench", "serve", "--json", *words]) == code
    return json.loads(capsys.readouterr().out)


def test_two_words_name_the_command() -> None:
    assert split(["bench", "serve", "-m", "x"]) == ("bench serve", ["-m", "x"])
    assert split(["bench", "latency"]) == ("bench", ["latency"])


def test_the_result_has_the_form_of_the_other_kinds_and_names_no_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ("--api-key", "hush", "--header", "X-Team=hush2", "--output-json", str(path), "--metadata", "device=H200", "--label", "mine")
    with scripted(stream(3)) as server:
        result = bench(capsys, "--base-url", server.url + "/v1", *SMALL, *words)
    assert json.loads(path.read_text()) == result
    assert {"command", "date", "device", "versions", "flags", "start", "results", "kind"} <= set(result)
    assert result["device"] == "H200"
    assert result["results"]["mine"]["requests"] == 6
    assert result["flags"]["model"] == "scripted"
    assert "hush" not in path.read_text()
    assert "--num-prompts 6" in result["command"]
    assert len(server.bodies) == 7, "one to warm up, which is not counted"
    assert {body["max_tokens"] for body in server.bodies[1:]} == {3}
    assert all(body["stream"] and body["ignore_eos"] and body["temperature"] == 0 for body in server.bodies)
    assert server.headers[0]["authorization"] == "Bearer hush"
    assert server.headers[0]["x-team"] == "hush2"


def test_chats_get_words_and_further_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(stream(3, chat=True)) as server:
        words = ("--backend", "openai-chat", "--no-ignore-eos", "--temperature", "none", "--extra-body", '{"top_k": 5}')
        found = bench(capsys, "--host", "127.0.0.1", "--port", str(server.port), *SMALL, *words, "--num-warmups", "0")
    assert found["results"]["random"]["output_tokens"] == 18
    assert {one["path"] for one in server.headers} == {"/v1/chat/completions"}
    body = server.bodies[0]
    assert len(body["messages"][0]["content"].split()) == 8
    assert body["top_k"] == 5
    assert {"ignore_eos", "temperature"} & set(body) == set()
    assert body["max_completion_tokens"] == 3


def test_failures_are_told_and_an_error_event_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        if number in (2, 3):
            return Reply([event({"error": {"message": "no memory"}}), b"data: [DONE]\n\n"])
        return Reply([b'{"error": {"message": "full"}}'], 429, sized=True) if number == 4 else stream(3)

    with scripted(script) as server:
        found = bench(capsys, "--base-url", server.url, *SMALL, "--goodput", "ttft:60000")["results"]["random"]
        assert (found["requests"], found["failed"], found["refused"]) == (3, 2, 1)
        assert found["errors"] == {"an error event: no memory": 2, "status 429: full": 1}
        assert found["goodput"]["share"] == 0.5
    with scripted(lambda body, number: script(body, 2) if number else stream()) as server:
        assert main(["bench", "serve", "--base-url", server.url, *SMALL]) == 1, "no request was answered"
        assert "6 failed" in capsys.readouterr().out


def test_what_was_sent_is_what_the_simulator_would_be_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, again = tmp_path / "trace.jsonl", tmp_path / "again.jsonl"
    words = ("--request-rate", "200", "--prefix-repetition-prefix-len", "12", "--prefix-repetition-suffix-len", "5")
    shape = ("--prefix-repetition-num-prefixes", "2", "--prefix-repetition-output-len", "3", "--num-prompts", "8")
    with scripted(lambda body, number: stream(3, num_prompt=len(body["prompt"]))) as server:
        bench(capsys, "--base-url", server.url, "--dataset-name", "prefix_repetition", *words, *shape, "--save-trace", str(path))
        trace = Trace.read(path)
        assert len(trace.arrivals) == 8
        assert trace.shares
        assert {len(one.tokens) for one in trace.arrivals} == {17}
        words = ("--dataset-name", "trace", "--dataset-path", str(path), "--save-trace", str(again))
        found = bench(capsys, "--base-url", server.url, *words)["results"]["trace"]
        assert (found["requests"], found["input_tokens"]) == (8, 8 * 17)
        prompts = [tuple(body["prompt"][:12]) for body in server.bodies if len(body["prompt"]) == 17]
        assert len(set(prompts[:8])) == len(set(prompts[8:])) == 2
    lengths = [[(len(one.tokens), one.output_len) for one in Trace.read(one).arrivals] for one in (path, again)]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("counts_tokens", [True, False])
def test_conversations_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, counts_tokens: bool) -> None:
    path = tmp_path / "chats.json"
    turns = [[{"from": "human", "value": f"question {n} of several words"}, {"from": "gpt", "value": "word " * (n + 1)}] for n in range(4)]
    path.write_text(json.dumps([{"conversations": turn} for turn in turns]))
    with scripted(stream(3), counts_tokens=counts_tokens) as server:
        words = ("--dataset-name", "sharegpt", "--dataset-path", str(path), "--num-prompts", "6", "--num-warmups", "0")
        assert main(["bench", "serve", "--base-url", server.url, *words]) == 0
    assert ("four characters" in capsys.readouterr().err) == (not counts_tokens)
    assert len(server.bodies) == 6
    assert all(body["prompt"].startswith("question") and "ignore_eos" not in body for body in server.bodies)
    if counts_tokens:
        assert sorted({body["max_tokens"] for body in server.bodies}) == [1, 2, 3, 4]


def test_a_page_and_a_named_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ("--output-html", str(page), "--save-result", "--result-dir", str(tmp_path / "in"), "--save-detailed", "--max-concurrency", "2")
    with scripted(stream(3)) as server:
        assert main(["bench", "serve", "--base-url", server.url, *SMALL, *words]) == 0
    assert "time to first token" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")
    (written,) = (tmp_path / "in").iterdir()
    assert written.name.startswith("openai-infqps-concurrency2-scripted-")
    assert len(json.loads(written.read_text())["details"]) == 6


def test_octavos_own_server_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with served(Script(["a", "b"], forever=True, num_cached_tokens=4), api_key=("k",)) as server:
        words = ("--base-url", server.url, "--api-key", "k", "--vocab-size", "256", "--case", "lat8")
        found = bench(capsys, *words, "--extra-body", '{"max_tokens": 5, "truncate_prompt_tokens": 16}')["results"]["lat8"]
        assert (found["requests"], found["failed"], found["output_tokens"]) == (8, 0, 40)
        assert found["prefix_hit_rate"] == 0.25
        assert main(["bench", "serve", "--base-url", server.url, *SMALL]) == 1
        assert "API key" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert main(["bench", "serve", "--port", str(free.getsockname()[1])]) == 1
    assert "127.0.0.1" in capsys.readouterr().err


def test_a_first_request_that_fails_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(Reply([b'{"error": {"message": "no such model"}}'], 404, sized=True)) as server:
        assert main(["bench", "serve", "--base-url", server.url]) == 1
    assert "no such model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--request-rate", "0"], "inf"),
        (["--request-rate", "fast"], "inf"),
        (["--endpoint", "/v2"], "/v1/completions"),
        (["--dataset-name", "sharegpt"], "needs the file"),
        (["--dataset-name", "trace", "--dataset-path", "x", "--request-rate", "5"], "trace says itself"),
        (["--goodput", "speed:5"], "ttft"),
        (["--input-len", "9:5"], "100:1024"),
        (["--input-len", "5:9", "--random-range-ratio", "0.5"], "one number"),
        (["--random-range-ratio", "2"], "0 to 1"),
        (["--case", "lat9"], "lat8"),
        (["--case", "lat8", "--backend", "openai-chat"], "/v1/completions"),
        (["--base-url", "ftp://x"], "http://"),
        (["--header", "novalue"], "KEY=VALUE"),
        (["--header", "a=b\nc"], "printable"),
        (["--num-prompts", "0"], "at least 1"),
        (["--burstiness", "0"], "greater than 0"),
        (["--request-rat", "5"], "--request-rate"),
    ],
)
def test_asked_wrongly(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *words]) == 2
    assert says in capsys.readouterr().err
