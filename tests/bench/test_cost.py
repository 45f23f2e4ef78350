"""Measuring what steps cost, on a machine whose steps take a known time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench.cost import Subject, conclude, grid, measure
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.plan.cost import Launch, Terms, cost_model
from octavo.plan.devices import Device, table_name
from octavo.plan.fit import fit
from octavo.plan.timing import Timing
from tests.bench.timed import Machine
from tests.plan.checkpoints import QWEN3_06B

TERMS = Terms(1.5, 1.4, 1.7, few=0.5, attention=3.0, kv=1.6, activations=0.4, sequences=4.0, collectives=1.0, eager=1.0)
LAUNCH = Launch(graph_s=0.3e-3, pass_s=2e-3, eager_s=12e-3, sequence_s=5e-6, token_s=1e-7)


@pytest.fixture
def subject() -> Subject:
    device = Device.named("h200")
    settings = resolve(EngineConfig.from_flags(max_num_seqs=8, max_model_len=512, cudagraph_mode="FULL_DECODE_ONLY"), QWEN3_06B, device)
    return Subject(Architecture.from_config(QWEN3_06B), settings, replace(device, name="NVIDIA H200"))


def test_the_costs_are_found_and_kept(subject: Subject, tmp_path: Path):
    loads = grid(subject.settings)
    measured = measure(Machine(subject, replace(subject.costs, coefficients=TERMS, launch=LAUNCH)), loads, subject.settings, 1000)
    assert list(measured) == list(loads)
    found = conclude(subject, measured, tmp_path)
    assert found["errors"]["median"] < 0.02
    for name, one in found["workloads"].items():
        assert abs(one["error"]) < 0.05, name
        assert one["measured_s"] == measured[name].seconds
    planned = replace(subject, device=Device.named("h200"))
    assert found["errors"]["launch_median"] < 0.05
    launch = Launch(**found["launch"])
    assert launch.eager_s == pytest.approx(LAUNCH.eager_s, rel=0.05), "a launch is not taken for the device's time, nor put on another step"
    assert launch.graph_s == pytest.approx(LAUNCH.graph_s, rel=0.2)
    kept = cost_model(planned.arch, planned.settings, planned.device, (tmp_path,))
    assert kept.coefficients == Terms(**found["coefficients"]), "planning for the device by its short name finds them"
    assert "others" in kept.origin
    again = fit(subject.costs, [Timing.of_row(row) for rows in found["timings"].values() for row in rows])
    assert again.coefficients == pytest.approx(kept.coefficients, rel=1e-2, abs=1e-3), "the result holds all that a fit needs"


def test_prompts_are_read_beside_answers(subject: Subject):
    machine = Machine(subject, replace(subject.costs, coefficients=TERMS, launch=LAUNCH))
    shapes = [one.shape for case in measure(machine, grid(subject.settings), subject.settings, 1000).values() for one in case.timings]
    assert sum(0 < shape.prefill_tokens < shape.num_tokens for shape in shapes) > 20
    assert sum(shape.prefill_tokens == 0 for shape in shapes) > 100


def test_the_grid_fits_the_settings(subject: Subject):
    small = replace(subject.settings, max_num_seqs=2, max_model_len=64)
    for name, make in grid(small).items():
        load = make()
        for arrival in load.first():
            assert len(arrival.tokens) + arrival.output_len <= 64, name


@pytest.mark.parametrize(
    ("driver", "table"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
     ("Strange 7", "Strange 7")],
)  # fmt: skip
def test_drivers_names(driver: str, table: str):
    assert table_name(driver) == table
