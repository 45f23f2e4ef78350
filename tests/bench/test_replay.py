"""A load played to the real loop on a fake clock: each request at its time, sessions as said, recorded as the simulator records."""

from __future__ import annotations

import pytest

from octavo.bench.replay import Player
from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.plan import StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.loop import EngineLoop
from octavo.llm import Collected
from octavo.plan.cost import StepTimes
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Kind, Synthetic
from octavo.simulate.result import summarize
from tests.bench.timed import Clock, TimedExecutor
from tests.laws.fake import make_layout

SETTINGS = Resolved(max_model_len=256, block_size=8, max_num_seqs=8, max_num_batched_tokens=64)
LOADS = {
    "open": lambda: Synthetic((Kind((5, 60), (2, 20)),), rate=20, duration_s=4),
    "closed": lambda: Synthetic((Kind(30, 10),), concurrency=6, num_sessions=40),
    "sessions": lambda: Synthetic((Kind((9, 20), (2, 9)),), rate=5, duration_s=4, turns=3, think_s=0.1, shared_len=16),
}


def times(shape: StepShape) -> StepTimes:
    return StepTimes(0.012 if shape.prefill_tokens else 0.001, 0.004 + 0.0002 * shape.num_tokens + 1e-7 * shape.decode_context)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("load", LOADS)
def test_what_is_played_is_what_is_simulated_at_equal_times_of_steps(load: str, depth: int) -> None:
    settings, layout, clock = SETTINGS.__class__(**{**vars(SETTINGS), "overlap_depth": depth}), make_layout(400, 8), Clock()
    executor, inbox = TimedExecutor(clock, times), Collected()
    loop = EngineLoop(Scheduler(settings, KVCache(layout, True)), executor, inbox, clock, depth)
    executor.loop = loop
    played = summarize(Player(loop, inbox, LOADS[load](), 1000).run())
    record, _ = simulate(LOADS[load](), settings, layout, times)
    expected = summarize(record)
    assert played["requests"] == expected["requests"] > 20
    for name in ("ttft_s", "itl_s", "e2e_s", "queue_s"):
        assert played[name] == pytest.approx(expected[name], abs=1e-9), name
    assert played["steps"] == expected["steps"]
    assert played["prefix_hit_rate"] == pytest.approx(expected["prefix_hit_rate"])
    assert played["running"] == pytest.approx(expected["running"], rel=0.05)
