"""`octavo simulate`: from a config.json and a load to a page and to JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from tests.plan.checkpoints import LLAMA3_8B


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_8B))
    return str(tmp_path)


def simulate(folder: str, capsys: pytest.CaptureFixture[str], *words: str):
    assert main(["simulate", folder, "--device", "h200", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_what_users_feel(folder: str, capsys: pytest.CaptureFixture[str]):
    found = simulate(folder, capsys, "--rate", "8", "--duration", "5", "--input-len", "100:300", "--output-len", "16")
    assert found["output_tokens"] == 16 * found["requests"]
    assert 100 <= found["input_tokens"] / found["requests"] <= 300
    assert 0 < found["itl_s"]["p50"] < found["ttft_s"]["p50"] < found["e2e_s"]["p50"]
    assert found["simulated_replicas"] == found["replicas"] == 1


def test_flags_of_the_engine_count(folder: str, capsys: pytest.CaptureFixture[str]):
    load = ("--rate", "30", "--duration", "3", "--output-len", "40")
    free = simulate(folder, capsys, *load)
    tight = simulate(folder, capsys, *load, "--max-num-seqs", "4")
    assert free["running"]["max"] > tight["running"]["max"] == 4
    assert tight["ttft_s"]["p90"] > free["ttft_s"]["p90"]


def test_users_a_mix_and_a_trace(folder: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert simulate(folder, capsys, "--concurrency", "4", "--num-prompts", "12", "--output-len", "4")["requests"] == 12
    mixed = simulate(folder, capsys, "--mix", "1:64/2", "1:32/2", "--rate", "20", "--duration", "2")
    assert 32 < mixed["input_tokens"] / mixed["requests"] < 64
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s": 3, "prompt_tokens": 10, "output_tokens": 2}\n')
    assert simulate(folder, capsys, "--trace", str(trace))["requests"] == 1


def test_the_page_is_one_screen(folder: str, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", folder, "--device", "h200", "--duration", "2", "--replicas", "70", "--rate", "70", "--output-len", "4"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 30
    assert "70 replicas, of which 64 were simulated" in text
    assert "time to first token" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "h300"], "h200"),
        (["--rate", "0"], "greater than 0"),
        (["--input-len", "9:3"], "ranges"),
        (["--mix", "64/2"], "0.5:4096/256"),
        (["--trace", "/no/such/file"], "/no/such/file"),
    ],
)
def test_what_cannot_be_is_told(folder: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", folder, *words]) == 2
    assert says in capsys.readouterr().err
