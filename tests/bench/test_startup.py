"""Starts in processes of their own: a scripted one for what is counted, and a real one of a tiny model at two levels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import startup
from octavo.cli.main import main
from tests.bench.test_knobs import TINY


class Scripted:
    """Answers as a start would, at a clock that moves a second with each; -O1 says a text with a tie, -O2 another one, -O3 fails."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.tasks: list[tuple[int, Mapping[str, str]]] = []

    def clock(self) -> float:
        return self.now_s

    def __call__(self, words: Sequence[str], variables: Mapping[str, str]) -> str:
        begin_s = self.now_s
        self.now_s += 1.0
        if words[0] == "-c":
            return ""
        task = json.loads(words[-1])
        level = task["flags"]["optimization_level"]
        self.tasks.append((level, variables))
        if level == 3:
            raise startup.StartFailed("no room")
        told = {"prompt": [1], "token_ids": [5] * task["output_len"], "best": []}
        assert task["told"] in (None, told)
        differing = [{"place": 3, "token": 6, "behind": 0.01, "tie": True}] if level else []
        differing += [{"place": 5, "token": 7, "behind": 2.0, "tie": False}] if level == 2 else []
        moments = {"begin": begin_s + 0.1, "imported": begin_s + 0.3, "ready": begin_s + 0.8, "first token": begin_s + 0.9}
        timeline = [["build model", 0.1], ["load weights", 0.2], ["load weights", 0.1]]
        return json.dumps(
            {
                "moments": moments, "timeline": timeline, "meanwhile": [["driver", 0.2]], "ms_per_token": 2.0 + level, "told": told,
                "differing": differing,
            }
        )  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr(startup, "Bench", partial(startup.Bench, launch=scripted, clock=scripted.clock))
    return scripted


def test_stages_are_all_of_the_time_to_the_first_token(script: Scripted, tmp_path: Path) -> None:
    start = startup.Bench({}, 8, tmp_path).start(1, "empty")
    seconds = {"python": 0.1, "import octavo": 0.2, "build model": 0.1, "load weights": 0.3, "other": 0.1, "first token": 0.1}
    assert start.stages == pytest.approx(seconds)
    assert start.first_token_s == pytest.approx(0.9)
    assert start.meanwhile == {"driver": 0.2}


def test_empty_starts_have_new_folders_and_filled_ones_that_of_their_level(script: Scripted, tmp_path: Path) -> None:
    found = list(startup.run(startup.Bench({}, 8, tmp_path), (0, 1), ("empty", "filled"), repeat=2))
    assert [isinstance(one, float) for one in found] == [True, False, False, False, False] * 2
    folders = [(level, variables["OCTAVO_CACHE_ROOT"]) for level, variables in script.tasks]
    empty, filled = folders[::2], folders[1::2]
    assert len({folder for _, folder in empty}) == 4
    assert filled == empty[:2] * 2, "the first empty start of a level has filled its folder"
    assert all(set(variables) == set(startup.CACHE_FOLDERS) for _, variables in script.tasks)


def test_where_only_filled_starts_are_asked_one_fills_first(script: Scripted, tmp_path: Path) -> None:
    found = list(startup.run(startup.Bench({}, 8, tmp_path), (1,), ("filled",), repeat=2))
    assert [isinstance(one, float) for one in found] == [True, False] * 2
    assert len(script.tasks) == 3
    assert len({variables["OCTAVO_CACHE_ROOT"] for _, variables in script.tasks}) == 1


def test_the_command_says_start_speed_and_text_of_each_level(script: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["bench", "startup", "m", "--levels", "0", "1", "2", "3", "--caches", "empty", "--repeat", "1", "--output-len", "8"]
    assert main([*words, "--output-json", str(path)]) == 1, "one level does not start"
    shown = capsys.readouterr().out
    assert "| -O0 | empty | 0.90 | 2.00 | equal |" in shown
    assert "| -O1 | empty | 0.90 | 3.00 | equal but for ties in 1 of 8 tokens |" in shown
    assert "| -O2 | empty | 0.90 | 4.00 | differs in 1 of 8 tokens |" in shown
    assert "| -O3 | empty | failed: no room |" in shown
    assert "| -O0 | empty | 0.10 | 0.20 | 0.10 | 0.30 | 0.10 | 0.10 |" in shown
    result = json.loads(path.read_text())
    assert {"command", "date", "device", "versions", "flags", "kind"} <= set(result)
    assert [row["level"] for row in result["results"]["starts"]] == [0, 1, 2, 3]
    assert result["results"]["floor_s"] == [1.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--levels", "4"], "0 1 2 3"), (["--caches", "warm"], "empty"), (["--repeat", "0"], "at least 1"), (["-O", "1"], "--levels")],
)
def test_asked_wrongly(script: Scripted, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "m", *words]) == 2
    assert says in capsys.readouterr().err
    assert script.tasks == []


def test_a_tiny_model_starts_at_two_levels_with_one_text(tmp_path: Path) -> None:
    """Octavo's own cache folder stays the usual one here, as an empty one has the CPU's kernels compiled."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    flags: dict[str, Any] = {"model": str(tmp_path), "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 64}
    flags |= {"kv_cache_memory_bytes": 1 << 20, "dtype": "float32"}
    bench = startup.Bench(flags, 6, tmp_path, lambda words, variables: startup.launch(words, {}))
    first = bench.start(0, "empty")
    starts = [first, bench.start(2, "empty", first.told)]
    assert [start.failed for start in starts] == ["", ""]
    assert first.told
    assert len(first.told["token_ids"]) == 6
    assert [len(place) for place in first.told["best"]] == [20] * 6
    assert starts[1].told == first.told
    assert [start.differing for start in starts] == [[], []]
    assert {"python", "import torch", "load weights", "first token"} <= set(starts[0].stages)
    assert all(seconds > -0.001 for start in starts for seconds in start.stages.values())


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    bench = startup.Bench({}, 1, tmp_path, lambda words, variables: startup.launch(["-c", "raise SystemExit('gone')"], variables))
    assert bench.start(0, "empty").failed == "gone"
