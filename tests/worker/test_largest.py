"""The largest step is one: all tokens, all sequences, each with a drawn token; and what it takes beside the plan is told."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import Checkpoint
from octavo.plan.memory import Costs
from octavo.worker import build, largest
from octavo.worker.build import build_runner
from tests.worker.test_warm import CONFIG

MIB = 1 << 20


@pytest.fixture
def run(tmp_path):
    """A runner of so many rows and blocks, its settings, and the plans of its steps."""

    def made(max_num_seqs=8, num_blocks=40):
        kv_bytes = num_blocks * 8 * 256
        settings = Resolved(max_model_len=64, block_size=8, max_num_seqs=max_num_seqs, max_num_batched_tokens=48, kv_bytes=kv_bytes)
        checkpoint = Checkpoint("tiny", tmp_path, "dummy", CONFIG, {})
        runner = build_runner(settings, Architecture.from_config(CONFIG), checkpoint, lambda name: nullcontext())
        plans = []
        step = runner.step
        runner.step = lambda plan: plans.append(plan) or step(plan)
        return runner, settings, plans

    return made


@pytest.mark.parametrize(
    ("max_num_seqs", "num_blocks", "counts"),
    [(8, 40, [6] * 8), (5, 40, [12, 9, 9, 9, 9]), (48, 40, [1] * 48), (1, 40, [48]), (4, 8, [12] * 4), (2, 2, [7, 7])],
)
def test_it_has_all_sequences_and_as_many_tokens_as_fit(run, max_num_seqs, num_blocks, counts):
    runner, settings, plans = run(max_num_seqs, num_blocks)
    largest.take_largest_step(runner, settings)
    (plan,) = plans
    assert [piece.count for piece in plan.slices] == counts
    assert all(piece.sample for piece in plan.slices)
    assert not runner.rows.held
    assert all(admission.params.temperature for admission in plan.admitted)


def test_more_than_planned_is_told(caplog):
    costs = Costs(0, 3 * MIB, 2 * MIB, 0, 0, 100 * MIB)
    largest.tell(5 * MIB, costs)
    assert not caplog.records
    largest.tell(7 * MIB, costs)
    assert [record.message for record in caplog.records] == [
        "the largest step takes 7.0 MiB, and 5.0 MiB were planned: 2.0 MiB of the reserve"
    ]


def test_an_exact_size_of_the_cache_leaves_it_out(run, monkeypatch):
    runner, settings, _ = run()
    monkeypatch.setattr(build, "largest_step_bytes", lambda runner, settings, costs: 7)
    costs, stages = Costs(0, 0, 0, 0, 0, 0), []

    def timed(name):
        stages.append(name)
        return nullcontext()

    assert build.first_steps(runner, settings, costs, timed) == {"step_bytes": 7}
    assert stages == ["warm up", "try largest step"]
    assert build.first_steps(runner, replace(settings, kv_bytes_exact=True), costs, timed) == {}
    assert stages[2:] == ["warm up"]


def test_where_it_does_not_fit_that_is_said_at_the_start(run, monkeypatch):
    runner, settings, _ = run()
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: MIB)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 4 * MIB)
    costs = Costs(0, 3 * MIB, 0, 0, 0, 0)
    assert largest.largest_step_bytes(runner, settings, costs) == 3 * MIB

    def refuse(plan):
        raise torch.OutOfMemoryError("no room")

    runner.step = refuse
    with pytest.raises(ConfigError, match=r"48 tokens and 8 sequences .* --gpu-memory-utilization"):
        largest.largest_step_bytes(runner, settings, costs)
