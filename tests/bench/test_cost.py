"""Measuring what steps cost, on a machine whose steps take a known time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.bench.cost import Subject, conclude, grid, measure
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.core.router import Router
from octavo.plan.cost import CostModel, Roofline, Terms, cost_model
from octavo.plan.devices import Device, table_name
from octavo.plan.fit import Timing
from octavo.plan.memory import kv_layout
from octavo.simulate.fleet import Fleet
from octavo.simulate.load import Arrival, Trace
from octavo.simulate.replica import Replica
from tests.plan.checkpoints import QWEN3_06B

TRUTH = Terms(step=1.5, weights=1.4, products=1.7, few=0.5, attention=3.0, kv=1.6, activations=0.4, sequences=4.0, collectives=1.0)


class Machine:
    """Has the face of `LLM` that is measured, and a clock."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.now_s, self.log = subject, 0.0, []
        self.model = CostModel(Roofline.of(subject.arch, subject.settings, subject.device), TRUTH)

    def seconds(self, shape):
        seconds = self.model.seconds(shape)
        self.log.append(Timing(shape, seconds))
        return seconds

    def generate(self, prompts, sampling_params, use_tqdm):
        settings = self.subject.settings
        arrivals = [Arrival(0.0, tuple(one["prompt_token_ids"]), params.max_tokens) for one, params in zip(prompts, sampling_params)]
        layout = kv_layout(self.subject.arch, settings.kv_dtype, settings.block_size, settings.kv_bytes)
        record = Fleet(Trace(tuple(arrivals)), [Replica(settings, layout, self.seconds)], Router(1)).run()
        self.now_s += max(one.last_s for one in record.served)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * params.max_tokens)]) for params in sampling_params]

    def get_step_log(self):
        return self.log

    def get_metrics(self):
        return {"num_steps": len(self.log)}


@pytest.fixture
def subject() -> Subject:
    device = Device.named("h200")
    settings = resolve(EngineConfig.from_flags(max_num_seqs=8, max_model_len=512), QWEN3_06B, device)
    return Subject(Architecture.from_config(QWEN3_06B), settings, replace(device, name="NVIDIA H200"))


def test_the_costs_are_found_and_kept(subject: Subject, tmp_path: Path):
    machine = Machine(subject)
    measured = measure(machine, subject.settings, 1000, seed=1, clock=lambda: machine.now_s)
    assert list(measured) == list(grid(subject.settings))
    assert 2 * sum(len(case.timings) for case in measured.values()) == pytest.approx(len(machine.log), rel=0.2), "each is run twice"
    found = conclude(subject, measured, tmp_path)
    assert found["errors"]["median"] < 0.02
    for name, one in found["workloads"].items():
        assert abs(one["error"]) < 0.05, name
        assert one["measured_s"] == measured[name].seconds
    planned = replace(subject, device=Device.named("h200"))
    kept = cost_model(planned.arch, planned.settings, planned.device, (tmp_path,))
    assert kept.coefficients == Terms(**found["coefficients"]), "planning for the device by its short name finds them"
    assert "others" in kept.origin


def test_the_grid_fits_the_settings(subject: Subject):
    small = replace(subject.settings, max_num_seqs=2, max_model_len=64)
    for name, workload in grid(small).items():
        assert workload.num_prompts <= 4, name
        longest = max(w if isinstance(w, int) else w[1] for w in (workload.input_len,))
        output = workload.output_len if isinstance(workload.output_len, int) else workload.output_len[1]
        assert longest + output <= 64


@pytest.mark.parametrize(
    ("driver", "table"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
     ("Strange 7", "Strange 7")],
)  # fmt: skip
def test_drivers_names(driver: str, table: str):
    assert table_name(driver) == table
