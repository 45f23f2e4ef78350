"""Knobs: one flag at a time on a real engine, each value once, and a page that shows what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import knobs, knobs_report
from octavo.bench.cost import Subject, at_once
from octavo.cli.bench_knobs import NAMES
from octavo.cli.main import main
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.plan.devices import Device
from octavo.plan.memory import plan_memory
from octavo.simulate.load import Kind
from tests.plan.checkpoints import LLAMA3_8B

TINY = {
    **LLAMA3_8B, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "num_hidden_layers": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def known(device: str) -> list[knobs.Knob]:
    arch, gpu = Architecture.from_config(LLAMA3_8B), Device.named(device)
    settings = resolve(EngineConfig.from_flags(max_model_len=8192), LLAMA3_8B, gpu)
    return knobs.knobs(settings, plan_memory(arch, settings))


def test_all_that_guides_turn_are_there_in_a_gpu_s_size() -> None:
    found = {knob.name: [value for value, _ in knob.values] for knob in known("h200")}
    assert tuple(found) == NAMES
    assert found["chunked prefill"] == ["2,048", "4,096", "8,192", "16,384", "off"]
    assert found["max_num_seqs"] == ["32", "64", "128", "256", "512"]
    (graphs,) = [knob for knob in known("h200") if knob.name == "graphs"]
    assert [load for load, _ in graphs.loads] == ["1 sequences", "16 sequences", "64 sequences"]
    (prefixes,) = [knob for knob in known("h200") if knob.name == "prefix cache"]
    assert [load for load, _ in prefixes.loads] == ["shared system prompt", "conversations", "few-shot examples"]


def test_every_value_is_a_setting_that_can_be() -> None:
    for knob in known("h200"):
        for _, changes in knob.values:
            asked = EngineConfig.from_flags(**{"max_model_len": 8192, **changes})
            assert resolve(asked, LLAMA3_8B, Device.named("h200")), knob.name


def test_each_value_meets_each_load_once_and_engines_are_shared(folder: str) -> None:
    from octavo.llm import LLM

    flags: dict[str, Any] = {
        "model": folder, "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 256, "kv_cache_memory_bytes": 1 << 20,
    }  # fmt: skip
    started: list[knobs.Changes] = []

    def start(changes: knobs.Changes) -> Any:
        started.append(changes)
        return LLM(**{**flags, **changes})

    few, more = ("few", at_once(2, Kind(32, 4))), ("more", at_once(4, Kind(32, 4)))
    seqs = knobs.Knob("seqs", "", (("1", {"max_num_seqs": 1}), ("4", {"max_num_seqs": 4})), (few, more))
    same = knobs.Knob("again", "", (("4", {"max_num_seqs": 4}), ("0", {"max_num_seqs": 0})), (more,))
    told: list[int] = []
    trials = knobs.run([seqs, same], start, Subject.of(flags).arch.vocab, lambda trials: told.append(len(trials)))
    assert told == [1, 2, 3, 4, 5, 6], "after each, all so far"
    assert [(trial.knob, trial.load, trial.value) for trial in trials] == [
        ("seqs", "few", "1"), ("seqs", "few", "4"), ("seqs", "more", "1"), ("seqs", "more", "4"),
        ("again", "more", "4"), ("again", "more", "0"),
    ]  # fmt: skip
    assert len(started) == 3, "one engine for each setting"
    assert all(trial.figures["requests"] == (2 if trial.load == "few" else 4) for trial in trials if trial.figures)
    assert trials[2].figures["running"]["max"] == 1 < trials[3].figures["running"]["max"]
    assert "--max-num-seqs" in trials[-1].refused
    head = {"command": "octavo", "date": "2026-11-30T00:00:00", "device": "here", "versions": {}}
    page = knobs_report.page(head, "m", trials, [seqs, same])
    assert page.count("<svg") == 2 * len(knobs_report.PLOTTED)
    assert "--max-num-seqs" in page
    assert "few" in knobs_report.as_text(trials, [seqs, same])


def test_the_command_writes_figures_and_a_page(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "knobs", folder, "--load-format", "dummy", "--max-model-len", "1024", "--kv-cache-memory-bytes", "8M"]
    words += ["--only", "prefix cache"]
    assert main([*words, "--output-json", str(tmp_path / "k.json"), "--output-html", str(tmp_path / "k.html")]) == 0
    results = {(one["load"], one["value"]): one["figures"] for one in json.loads((tmp_path / "k.json").read_text())["results"]}
    assert len(results) == 6
    for load in ("shared system prompt", "conversations", "few-shot examples"):
        assert results[load, "on"]["prefix_hit_rate"] > 0.3 > results[load, "off"]["prefix_hit_rate"] == 0
    assert "conversations" in (tmp_path / "k.html").read_text()
    assert "found in the cache" in capsys.readouterr().out
    assert main(["bench", "knobs", folder, "--only", "nothing"]) == 2
    assert "memory share" in capsys.readouterr().err
