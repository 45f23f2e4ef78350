"""The whole course on an engine whose steps take a known time: what is found is measured, told with reasons, and can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.bench.cost import Subject
from octavo.cli.main import main
from octavo.cli.tune import kinds_of
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.resolve import resolve
from octavo.plan.cost import Terms, cost_model
from octavo.plan.devices import Device
from octavo.progress import Progress
from octavo.simulate.load import Kind
from octavo.tune import report
from octavo.tune.course import Outcome, Predictor, Task, tune
from octavo.tune.journal import Journal
from octavo.tune.machine import Machine
from octavo.tune.objective import MostRequests, Slo, choose
from octavo.tune.space import Choice, choices
from octavo.tune.workload import choose as choose_load
from tests.bench import timed
from tests.plan.checkpoints import DEEPSEEK_V3, LLAMA3_8B, QWEN3_06B

FLAGS: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 64, "block_size": 16, "gpu_memory_utilization": 0.5}
TERMS = Terms(3.0, 3.0, 4.0, few=0.0, attention=6.0, kv=3.0, activations=4.0, sequences=40.0, collectives=1.0, eager=1.0)
SLO = Slo.read("ttft_p99<800ms, itl_p99<0.1s")


class Engine(timed.Machine):
    def close(self) -> None:
        pass


def subject_of(flags: dict[str, Any]) -> Subject:
    device = Device.named("h200")
    return Subject(Architecture.from_config(LLAMA3_8B), resolve(EngineConfig.from_flags(**flags), LLAMA3_8B, device), device)


@pytest.fixture
def starts() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def machine(tmp_path: Path, starts: list[dict[str, Any]]) -> Callable[[], Machine]:
    def start(flags: dict[str, Any]) -> Engine:
        starts.append(flags)
        subject = subject_of({name: value for name, value in flags.items() if name != "skip_tokenizer_init"})
        return Engine(subject, replace(subject.costs, coefficients=TERMS))

    def make() -> Machine:
        journal = Journal(tmp_path / "state.json", {"load": "test"})
        return Machine(
            FLAGS, subject_of(FLAGS), LLAMA3_8B, start, journal, choose_load("test", "cuda", (Kind(900, 4, 0.3), Kind(20, 24, 0.7)))
        )

    return make


def course(machine: Machine) -> tuple[Outcome, Task]:
    task = Task(MostRequests(SLO), choices(machine.subject.settings, FLAGS, SLO), 3.0, 8, 1, 4, first_rate=15.0)
    first = cost_model(machine.subject.arch, machine.subject.settings, machine.subject.device, ())
    return tune(machine, task, first, Progress(1, "s", shown=False), lambda line: None), task


def test_settings_that_are_better_are_found_and_told(machine: Callable[[], Machine], starts: list[dict[str, Any]]) -> None:
    found, task = course(machine())
    assert found.best is not found.baseline, "steps of several long prompts miss the limit between tokens"
    gain, predicted = found.best.measured.gain_over(found.baseline.measured), found.best.predicted.gain_over(found.baseline.predicted)
    assert gain > 0.1
    assert (1 + gain) / (1 + predicted) == pytest.approx(1, abs=0.1), "the machine is as simple as the simulator"
    assert {stair.flag for stair in found.stairs} == set(found.best.changes)
    whole = 1.0
    for stair in found.stairs:
        whole *= 1 + stair.measured_gain
    assert whole == pytest.approx(1 + gain)
    assert len(starts) == 1, "a running engine takes smaller steps without a new start"

    facts = {"command": "octavo tune", "device": "H200", "date": "2026-01-01T00:00:00", "versions": {"octavo": "1"}}
    head = report.Head(facts, "m<1>", "test", SLO, task.objective.unit)
    written = report.settings_file(head, found, task.choices, FLAGS)
    flags = {name.replace("-", "_"): value for name, value in yaml.safe_load(written).items()}
    assert flags == {**FLAGS, **found.best.changes}
    EngineConfig.from_flags(**flags)
    assert "measured" in written
    assert "limits: ttft_p99 < 800 ms, itl_p99 < 100 ms" in written
    page = report.page(head, found, task.choices)
    assert page.count("<svg") == 2
    assert "m&lt;1&gt;" in page

    again, _ = course(machine())
    assert len(starts) == 1, "what was played is in the file of its state"
    assert again.best.changes == found.best.changes


def test_a_state_of_another_task_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    Journal(path, {"slo": "a"}).of("x", lambda: 1)
    assert Journal(path, {"slo": "a"}).of("x", lambda: 2) == 1
    with pytest.raises(ConfigError, match="slo differ"):
        Journal(path, {"slo": "b"})
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Journal(path, {"slo": "a"})


def test_a_load_is_scaled_to_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"arrival_s": n, "prompt_tokens": 5, "output_tokens": 2}) + "\n" for n in range(11)))
    trace = choose_load(str(path), "cpu")
    assert trace.longest == 7
    assert [arrival.at_s for arrival in trace.at(2.2, 3.0).first()] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert len(list(trace.at(float("inf"), 3.0).first())) == 11
    for name in ("chat", "batch", "mixed", "long-context"):
        load = choose_load(name, "cpu")
        assert 60 < len(list(load.at(20.0, 5.0).first())) * (2 if name == "chat" else 1) < 150
        assert all(len(one.tokens) + one.output_len <= load.longest for one in load.at(20.0, 5.0).first())
        assert all(one.at_s == 0 for one in load.at(float("inf"), 5.0).first())
    assert kinds_of("0.5:10/2,0.5:1:5/3") == (Kind(10, 2, 0.5), Kind((1, 5), 3, 0.5))
    assert kinds_of("chat") == kinds_of("C:/trace") == kinds_of("0:1/2") == ()
    with pytest.raises(ConfigError, match="long-context"):
        choose_load("none", "cpu")


def test_the_objectives() -> None:
    def at(rate: float) -> dict[str, Any]:
        return {"requests": 1, "refused": 0, "ttft_s": {"p99": 0.1 * rate}, "requests_per_s": 3.0, "output_tokens_per_s": 7.0}

    slo = Slo.read("ttft_p99<1s")
    for guess in (2.0, 9.0, 30.0):
        assert choose("throughput", slo, None, 1.0).measure(at, guess, 8).value == pytest.approx(10, rel=0.05)
    assert choose("throughput", slo, None, 1.0).measure(lambda rate: at(1000), 9.0, 8).value == 0, "no rate keeps the limit"
    assert choose("ttft", slo, 5.0, 1.0).measure(at, 1.0, 8).value == pytest.approx(2)
    assert choose("ttft", slo, 11.0, 1.0).measure(at, 1.0, 8).value == 0
    assert choose("throughput", Slo(), None, 1.0).measure(at, 1.0, 8).value == 7
    assert [str(limit) for limit in Slo.read("itl_p99<50ms").bounded(10).limits] == ["itl_p99 < 50 ms", "ttft_p99 < 2000 ms"]
    with pytest.raises(ConfigError, match="rate"):
        choose("itl", slo, None, 1.0)


@pytest.mark.parametrize("installed", [True, False])
def test_the_best_of_a_large_space_is_found(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.tune import search

    monkeypatch.setattr(search.importlib.util, "find_spec", lambda name: object() if installed else None)
    space = [Choice("a", (5, 1, 2, 3)), Choice("b", (None, 10, 20, 30)), Choice("c", ("x", "y", "z"))]
    asked: list[Any] = []

    def rate(changes: Any) -> float:
        asked.append(changes)
        return 10 - abs(changes.get("a", 5) - 2) - abs((changes.get("b") or 0) - 20) / 10 - (changes.get("c", "x") != "z")

    ranked = search.search(space, rate, 30)
    assert ranked[0] == ({"a": 2, "b": 20, "c": "z"}, 10)
    assert asked[0] == {}
    assert len(asked) == len({tuple(sorted(one.items())) for one in asked}) <= 31, "none is asked twice"
    asked.clear()
    assert search.search(space, rate, 100)[0][1] == 10
    assert len(asked) == 48, "a small space is tried whole"


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--slo", "ttft_p42<5ms"], "itl_p99<50ms"), (["--workload", "none"], "long-context"), (["--objective", "joy"], "throughput, ttft"),
     (["--objective", "itl"], "--rate"), (["--workload", "1:4000/200"], "--max-model-len 512")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_06B))
    assert main(["tune", str(tmp_path), "--max-model-len", "512", "--output", str(tmp_path / "o.yaml"), *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "flags", "formats"),
    [(QWEN3_06B, {}, ("int8", "fp8")), (QWEN3_06B, {"attention_backend": "flashinfer"}, ()), (DEEPSEEK_V3, {}, ())],
)  # fmt: skip
def test_formats_of_k_and_v_are_tried_where_attention_reads_them(machine: Callable[[], Machine], config, flags, formats) -> None:
    device = replace(Device.named("h200"), name="cpu", kind="cpu", sm=0, memory_bytes=2**42, free_bytes=2**42)  # room for all
    asked = {"max_model_len": 64, **flags}
    settings = resolve(EngineConfig.from_flags(**asked), config, device)
    here = replace(machine(), flags=asked, config=config, subject=Subject(Architecture.from_config(config), settings, device))
    assert here.kv_formats() == formats
    tried = {choice.flag: choice.values for choice in choices(settings, {}, SLO, formats)}
    assert tried.get("kv_cache_dtype", ("auto",)) == ("auto", *formats)
    assert "kv_cache_dtype" not in {choice.flag for choice in choices(settings, {"kv_cache_dtype": "auto"}, SLO, formats)}


def test_layouts_are_tried_where_there_are_gpus(machine: Callable[[], Machine]) -> None:
    """Two replicas serve twice as much, at what one of them makes its part of the load feel."""
    tuned = replace(machine(), num_devices=2)
    settings = tuned.subject.settings
    by_flag = {choice.flag: choice.values for choice in choices(settings, {}, SLO, num_devices=2)}
    for layout in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        assert by_flag[layout] == (1, 2)
    assert by_flag["enable_chunked_prefill"] == (True, False)
    assert {"long_prefill_token_threshold", "optimization_level", "gpu_memory_utilization"} < set(by_flag)
    with pytest.raises(ConfigError, match="at most 2 GPUs"):
        tuned.settings({"tensor_parallel_size": 2, "data_parallel_size": 2})
    task = Task(MostRequests(SLO), (), 4.0, 1, 1, 4, first_rate=15.0)
    predictor = Predictor(tuned, tuned.subject.costs, task)
    one, two = predictor.play({}, 10.0), predictor.play({"data_parallel_size": 2}, 20.0)
    shared = predictor.play({"tensor_parallel_size": 2}, 10.0)
    assert two["requests_per_s"] == pytest.approx(2 * one["requests_per_s"], rel=0.2)
    assert two["itl_s"]["p50"] == pytest.approx(one["itl_s"]["p50"], rel=0.2)
    assert shared["itl_s"]["p50"] < one["itl_s"]["p50"]
    played = tuned.play({"data_parallel_size": 2}, 20.0, 4.0)
    assert played["requests_per_s"] == pytest.approx(two["requests_per_s"], rel=0.2)
    tuned.close()
