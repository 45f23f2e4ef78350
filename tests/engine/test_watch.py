"""What the engine sees of itself: loads that are held back by one thing are said to be held back by it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from octavo.bench.replay import Player
from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.plan import StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Ask
from octavo.llm import Collected
from octavo.simulate.load import Kind, Synthetic
from tests.bench.timed import Clock, TimedExecutor, device_only
from tests.laws.fake import make_layout


@device_only
def times(shape: StepShape) -> float:
    return 0.02 + 0.0002 * shape.num_tokens


def watched(load: Synthetic, num_blocks: int, **settings: Any) -> tuple[EngineLoop, list[str]]:
    resolved = Resolved(**{"max_model_len": 256, "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 256, **settings})
    clock, inbox = Clock(), Collected()
    executor = TimedExecutor(clock, times)
    loop = executor.loop = EngineLoop(Scheduler(resolved, KVCache(make_layout(num_blocks, 8), True)), executor, inbox, clock, 1)
    Player(loop, inbox, load, 1000).run()
    loop.handle([Ask("a", "advice")])
    return loop, [finding["kind"] for finding in inbox.answers["a"]]


@pytest.mark.parametrize(
    ("kind", "load", "num_blocks", "settings"),
    [
        ("kv-bound", Synthetic((Kind(100, 60),), concurrency=16, num_sessions=300), 120, {}),
        ("sequence-bound", Synthetic((Kind(40, 20),), concurrency=16, num_sessions=600), 2000, {"max_num_seqs": 2}),
        ("budget-bound", Synthetic((Kind(200, 2),), concurrency=12, num_sessions=600), 2000, {"max_num_batched_tokens": 64}),
        ("over-provisioned", Synthetic((Kind(40, 2),), rate=0.7, duration_s=70), 2000, {}),
    ],
)
def test_what_holds_back_is_found(
    kind: str, load: Synthetic, num_blocks: int, settings: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "octavo.engine.watch"):
        _, kinds = watched(load, num_blocks, **settings)
    assert kinds[0] == kind
    assert f"advice: {kind}" in caplog.text


def test_the_window_is_the_last_minute() -> None:
    loop, _ = watched(Synthetic((Kind(40, 20),), rate=2, duration_s=150), 2000)
    window = loop.watch.window(loop.scheduler, loop.clock())
    assert 50.0 <= window.seconds <= 80.0
    assert 0 < window.busy_s < window.seconds
    assert window.num_steps < loop.step_log.num_steps
    assert 0 < window.mean_running < 4
