"""The simulator decides what the engine decides, step for step: the real loop is run on a fake clock with the same times of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import KVLayout
from octavo.core.plan import Plan, StepOutput
from octavo.core.router import Router
from octavo.core.scheduler import Scheduler
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Add, Ask
from octavo.plan.cost import StepTimes
from octavo.simulate.fleet import Fleet
from octavo.simulate.load import Arrival, Kind, Load, Synthetic
from octavo.simulate.replica import Replica
from octavo.types import Request, SamplingParams, SequenceOutput
from tests.bench.timed import Clock, TimedStep
from tests.laws.fake import make_layout


def times_of(step: int, seed: int) -> StepTimes:
    """Now the host is what takes longer, now the device."""
    source = Random(step * 1000 + seed)
    return StepTimes(source.choice([0.0, 0.0005, 0.01]), source.choice([0.001, 0.004, 0.02]))


@dataclass
class TimedExecutor:
    """A host that launches steps, and a device that runs one after the other; who waits for a result, waits on the clock."""

    clock: Clock
    seed: int
    plans: list[Plan] = field(default_factory=list)
    free_s: float = 0.0
    last_token: dict[int, int] = field(default_factory=dict)

    def submit(self, plan: Plan) -> TimedStep:
        self.plans.append(plan)
        for admission in plan.admitted:
            self.last_token[admission.row] = admission.tokens[-1]
        launch_s, device_s = times_of(plan.step, self.seed)
        ended_s = max(self.free_s, self.clock.now_s) + device_s
        self.clock.now_s += launch_s
        self.free_s = max(ended_s, self.clock.now_s)
        tokens = [[self.last_token[piece.row]] if piece.sample else [] for piece in plan.slices]
        return TimedStep(self.clock, self.free_s, StepOutput(plan.step, tokens))

    def sample(self, plan: Plan, masks: Any) -> None:
        raise AssertionError("no plan of this test has a grammar")

    def close(self) -> None:
        pass


@dataclass
class Front:
    """Hears the engine's news; an answer may lead to another request."""

    clock: Clock
    load: Load
    arrivals: list[tuple[float, int, Arrival]] = field(default_factory=list)
    sent: dict[str, Arrival] = field(default_factory=dict)
    heard: list[tuple[float, str, int]] = field(default_factory=list)
    number: int = 0

    def queue(self, arrival: Arrival) -> None:
        self.number += 1
        heappush(self.arrivals, (arrival.at_s, self.number, arrival))

    def due(self) -> list[Add]:
        found: list[Add] = []
        while self.arrivals and self.arrivals[0][0] <= self.clock.now_s:
            arrival = heappop(self.arrivals)[2]
            name = f"r{len(self.sent)}"
            self.sent[name] = arrival
            params = SamplingParams(max_tokens=arrival.output_len, ignore_eos=True, detokenize=False)
            found.append(Add(Request(name, arrival.tokens, params, arrival.at_s)))
        return found

    def send(self, outputs: Sequence[SequenceOutput]) -> None:
        for said in outputs:
            self.heard.append((self.clock.now_s, said.request_id, len(said.token_ids)))
            if said.finish_reason is not None:
                following = self.load.after(self.sent[said.request_id], self.clock.now_s)
                if following is not None:
                    self.queue(following)

    def answer(self, ask: Ask, value: object) -> None:
        raise AssertionError("this test asks the engine nothing")


def serve(settings: Resolved, layout: KVLayout, load: Load, seed: int) -> tuple[list[Plan], list[float], EngineLoop]:
    """As `engine/server.py` does: receive, and step while there is work."""
    clock = Clock()
    front, executor = Front(clock, load), TimedExecutor(clock, seed)
    scheduler = Scheduler(settings, KVCache(layout, settings.enable_prefix_caching))
    loop = EngineLoop(scheduler, executor, front, clock, settings.overlap_depth)
    for arrival in load.first():
        front.queue(arrival)
    while front.arrivals or loop.busy:
        if not loop.busy:
            clock.now_s = max(clock.now_s, front.arrivals[0][0])
        loop.handle(front.due())
        if loop.busy:
            loop.step()
    return executor.plans, sorted(at_s for at_s, _, _ in front.heard), loop


def simulated(settings: Resolved, layout: KVLayout, load: Load, seed: int) -> tuple[list[Plan], Fleet]:
    plans: list[Plan] = []

    def times(shape: object) -> StepTimes:
        plans.append(replica.scheduler.flight[-1].plan)
        return times_of(len(plans), seed)

    replica = Replica(settings, layout, times)
    fleet = Fleet(load, [replica], Router(1))
    fleet.run()
    return plans, fleet


LOADS = {
    "poisson": lambda: Synthetic((Kind((1, 40), (1, 20)),), rate=30, duration_s=3),
    "bursts": lambda: Synthetic((Kind((1, 40), (1, 20)),), rate=30, duration_s=3, burstiness=0.1, seed=3),
    "sessions": lambda: Synthetic((Kind((2, 12), (1, 6)),), rate=10, duration_s=2, turns=3, think_s=0.05, shared_len=9, num_shared=2),
    "users": lambda: Synthetic((Kind(20, 8, 0.5), Kind((30, 60), 3, 0.5)), concurrency=5, num_sessions=40),
}


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("num_blocks", [200, 24])
def test_the_same_plans_at_the_same_times(load: str, depth: int, num_blocks: int) -> None:
    settings = Resolved(max_model_len=80, block_size=4, max_num_seqs=6, max_num_batched_tokens=24, overlap_depth=depth)
    layout = make_layout(num_blocks, 4)
    plans, heard_s, loop = serve(settings, layout, LOADS[load](), seed=depth)
    again, fleet = simulated(settings, layout, LOADS[load](), seed=depth)
    assert len(plans) > 30
    assert again == plans
    first_s = sorted(one.first_s for one in fleet.record.served)
    assert set(first_s) <= set(heard_s)
    assert sum(one.num_output for one in fleet.record.served) == len(heard_s)
    assert fleet.record.counts["preemptions"] == loop.stats()["num_preemptions"]
    assert fleet.replicas[0].now_s == loop.step_ended_at_s


def test_the_small_pool_preempts_and_sessions_hit() -> None:
    """So that the law above is about these too."""
    settings = Resolved(max_model_len=80, block_size=4, max_num_seqs=6, max_num_batched_tokens=24)
    _, fleet = simulated(settings, make_layout(24, 4), LOADS["poisson"](), seed=1)
    assert fleet.record.counts["preemptions"] > 0
    _, fleet = simulated(settings, make_layout(200, 4), LOADS["sessions"](), seed=1)
    assert sum(one.num_cached for one in fleet.record.served) > 0
