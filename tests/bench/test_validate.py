"""Simulated against real, on an engine whose steps take a known time: it is the same, and can be judged again from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench import validate
from octavo.bench.cost import Subject
from octavo.cli.main import main
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.plan.devices import Device
from tests.bench.timed import Machine
from tests.plan.checkpoints import QWEN3_06B


@pytest.fixture
def subject() -> Subject:
    device = Device.named("h200")
    settings = resolve(EngineConfig.from_flags(max_num_seqs=16, max_model_len=1024, max_num_batched_tokens=512), QWEN3_06B, device)
    settings = replace(settings, device="cpu", kv_bytes=1 << 30)  # the short loads
    return Subject(Architecture.from_config(QWEN3_06B), settings, device)


def test_a_known_machine_is_simulated_as_it_is(subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = validate.Bench(Machine(subject), subject, 1000)
    validate.run(bench, duration_s=0.5, target_itl_s=0.02)
    assert len(bench.played) == 11
    rows = validate.judge(subject, bench.played)
    for row in rows:
        for name, (real, _, error) in row["rows"].items():
            assert real > 0
            assert abs(error) < 0.15, (row["name"], name)
    assert sum("TTFT p99" in row["rows"] for row in rows) == 8, "latencies of users who wait for each other are not compared"
    assert validate.as_table(rows).count("\n") == 12
    assert len(validate.held(bench.played)) == 2, "at busy and at light load"

    again = validate.Bench(Machine(subject), subject, 1000)
    validate.run(again, 0.5, 0.02, only_mixed=True)
    assert [one.point for one in again.played] == [one.point for one in bench.played[:5]]
    data = json.loads(json.dumps(validate.to_data(subject, bench.played)))
    read, played = validate.from_data(subject.arch, data)
    assert read.settings == replace(subject.settings, reasons={})
    assert [len(one.timings) for one in played] == [len(one.timings) for one in bench.played]
    assert [one.point for one in played] == [one.point for one in bench.played]
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_06B))
    (tmp_path / "played.json").write_text(json.dumps({"results": data}))
    assert main(["bench", "validate", str(tmp_path), "--replayed", str(tmp_path / "played.json")]) == 0
    assert "mixed, target" in capsys.readouterr().out
    assert main(["bench", "validate", str(tmp_path), "--replayed", str(tmp_path / "none.json")]) == 2
