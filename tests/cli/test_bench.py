"""`octavo bench` against a fake model: what is measured and what is written down."""

import json
from pathlib import Path

import pytest

from octavo.cli.main import main
from tests.cli.fake_llm import FakeLLM, install


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    return install(monkeypatch)


def test_throughput_of_a_known_case(made: list[FakeLLM], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["bench", "throughput", "--case", "lat8", "dec64", "--model", "m", "--load-format", "dummy", "--output-json", str(path)]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads(path.read_text()) == result
    assert list(result["results"]) == ["lat8", "dec64"]
    assert result["results"]["dec64"]["output_tokens"] == 64 * 256
    assert {"device", "versions", "command", "date", "flags", "start"} <= set(result)
    assert {"torch", "python", "octavo"} <= set(result["versions"])
    assert made[0].flags == {"load_format": "dummy", "skip_tokenizer_init": True}


@pytest.mark.parametrize("count", ["--num-prompts", "--batch-size"])
def test_a_free_workload_and_latency(count: str, made: list[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", count, "3", "--input-len", "5:9", "--output_len", "4", "--num-iters", "2"]) == 0
    result = json.loads(capsys.readouterr().out)["results"]["free"]
    assert (result["requests"], result["runs"]) == (3, 2)
    prompts = [prompt for asked, _ in made[0].asked[1:] for prompt in asked]
    assert all(5 <= len(prompt["prompt_token_ids"]) <= 9 for prompt in prompts)


@pytest.mark.parametrize(
    ("words", "says"),
    [([], "latency"), (["speed"], "latency, throughput"), (["latency", "--case", "none"], "lat1"),
     (["latency", "--input-len", "9:5"], "100:1024"),
     (["latency", "--num-iters", "0"], "at least 1")],
)  # fmt: skip
def test_asked_wrongly(made: list[FakeLLM], words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err
    assert made == []
