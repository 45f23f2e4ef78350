"""`octavo generate` against a fake model."""

import io
import json

import pytest

from octavo.cli.main import main
from octavo.types import SamplingParams
from tests.cli.fake_llm import FakeLLM, install


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    return install(monkeypatch)


def test_one_prompt_prints_its_text(made: list[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "some/model", "-p", "Hello", "--max-tokens", "12", "--temperature", "0", "--max-num-seqs", "4"]) == 0
    assert capsys.readouterr().out == "answer to Hello\n"
    assert (made[0].model, made[0].flags) == ("some/model", {"max_num_seqs": 4})
    assert made[0].asked == [(["Hello"], SamplingParams(max_tokens=12, temperature=0))]


def test_the_model_s_own_sampling_defaults_hold_for_what_is_not_asked(made: list[FakeLLM]) -> None:
    assert main(["generate", "-p", "Hello", "--top-k", "5", "--stop", "a", "b"]) == 0
    assert made[0].asked[0][1] == SamplingParams(top_p=0.9, top_k=5, stop=("a", "b"), max_tokens=128)


def test_several_prompts_and_json(made: list[FakeLLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "one", "two"]) == 0
    assert capsys.readouterr().out == "--- one\nanswer to one\n--- two\nanswer to two\n"
    assert main(["generate", "-p", "one", "two", "--json", "--max-tokens", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == {"prompt": "two", "text": "answer to two", "token_ids": [7, 7], "finish_reason": "length"}


def test_standard_input_is_a_prompt(made: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["generate"]) == 0
    assert capsys.readouterr().out == "answer to from a pipe\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--temperature", "-1"], "temperature"), (["--temperature", "hot"], "--temperature"), (["--max-tokens", "0"], "max_tokens"),
     (["--block-size", "17"], "--block-size"), (["--no-such"], "--no-such")],
)  # fmt: skip
def test_wrong_values_are_told_in_one_line(made: list[FakeLLM], words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "x", *words]) == 2
    text = capsys.readouterr().err
    assert says in text
    assert len(text.splitlines()) == 1


def test_a_wrong_engine_flag_is_told_before_the_engine_starts(made: list[FakeLLM]) -> None:
    assert main(["generate", "-p", "x", "--gpu-memory-utilization", "2"]) == 2
    assert made == []


def test_no_prompt_at_all(made: list[FakeLLM], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["generate"]) == 2
    assert "-p" in capsys.readouterr().err


def test_only_the_text_is_printed_unless_the_log_is_asked_for(made: list[FakeLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """The level given to `start_logging` yields to OCTAVO_LOGGING_LEVEL: tests/test_logs.py."""
    levels: list[str | None] = []
    monkeypatch.setattr("octavo.logs.start_logging", levels.append)
    assert main(["generate", "-p", "Hello"]) == 0
    assert levels == ["WARNING"]
