"""Replicas in lock step under random loads: all take every step, padded to one size, and every text is plain recursion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import cast

import pytest

from octavo.cluster.coordinator import Seat
from octavo.core.limits import SlotPool
from octavo.core.lockstep import Intent
from octavo.core.plan import Plan
from octavo.engine.lockstep import LockStep
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout
from tests.laws.test_workloads import Workload, draw_workload

NUM_LOADS = 240
PARTS = 4


@dataclass
class Round:
    """What the coordinator knows of a round: who has spoken, and whether a wave goes on from the last one."""

    words: list[Intent]
    running: bool = False


@dataclass
class FakeSeat:
    round: Round
    rank: int
    fd: int = -1

    def called(self) -> bool:
        return self.round.running or any(word.num_tokens for word in self.round.words)

    def speak(self, intent: Intent) -> list[Intent]:
        assert intent.num_tokens == self.round.words[self.rank].num_tokens
        return self.round.words


def draw_ranks(seed: int) -> list[Workload]:
    """Loads of one model on 2 to 4 ranks, which end at different times; some ranks have nothing to do."""
    draw = Random(seed)
    first = draw_workload(draw.randrange(1 << 30))
    first = replace(first, settings=replace(first.settings, pipeline_parallel_size=1), failing=())
    room = first.settings.max_model_len
    found = [first]
    while len(found) < draw.choice([2, 3, 4]):
        requests = draw_workload(draw.randrange(1 << 30)).requests if draw.random() < 0.7 else ()
        fitting = tuple((at, one) for at, one in requests if len(one.prompt_token_ids) < room and not one.params.min_tokens)
        found.append(replace(first, requests=fitting))
    return found


def run_ranks(loads: list[Workload]) -> int:
    """How many steps some rank had no work in."""
    engines = [
        Engine(
            load.settings, make_layout(load.num_blocks, load.settings.block_size, load.windows, load.units), FakeModel(32, load.windows),
            hit_rate=load.hit_rate, limits=(SlotPool(load.slots),),
        )
        for load in loads
    ]  # fmt: skip
    round_ = Round([])
    others = [LockStep(cast(Seat, FakeSeat(round_, rank))) for rank in range(len(loads))]
    num_idle = 0
    for now in range(20_000):
        for engine, load in zip(engines, loads):
            engine.add(*(request for at, request in load.requests if at == now))
        if now > 16 and not any(engine.scheduler.has_work or engine.flight for engine in engines):
            break
        plans = [engine.plan() for engine in engines]
        round_.words = [Intent(plan.num_tokens if plan else 0) for plan in plans]
        taken = [other.together(plan) for other, plan in zip(others, plans)]
        num_idle += check_round(plans, taken)
        round_.running = any(plans)
        assert [other.waiting for other in others] == [round_.running] * len(others), "the wave ends for all at once"
        for engine, plan in zip(engines, plans):
            if engine.flight and (len(engine.flight) > engine.settings.overlap_depth or plan is None):
                engine.commit()
    for engine in engines:
        engine.check_texts()
        engine.check_empty()
    return num_idle


def check_round(plans: list[Plan | None], taken: list[Plan | None]) -> int:
    """A step of one rank is a step of all, of one size; a rank's own slices stay as it planned them."""
    assert len({step is None for step in taken}) == 1
    if not any(plans):
        assert taken[0] is None
        return 0
    steps = [step for step in taken if step is not None]
    size = max(plan.num_tokens for plan in plans if plan)
    for plan, step in zip(plans, steps):
        assert step.num_tokens_all == size >= step.num_tokens
        assert step.slices == (plan.slices if plan else ())
    return plans.count(None)


@pytest.mark.parametrize("part", range(PARTS))
def test_ranks_step_together_whatever_comes_when(part: int) -> None:
    num_idle = 0
    for seed in range(part, NUM_LOADS, PARTS):
        try:
            num_idle += run_ranks(draw_ranks(seed))
        except Exception as error:
            raise AssertionError(f"loads {seed}: {draw_ranks(seed)}") from error
    assert num_idle > 100, "ranks without work take part"
