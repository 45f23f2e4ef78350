"""A host and a device that take as long as a function of the step says, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.bench.cost import Subject
from octavo.bench.replay import OwnTime
from octavo.core.budget import step_budget
from octavo.core.kv.cache import KVCache
from octavo.core.plan import Plan, StepOutput, StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.costs import LearnedCosts
from octavo.engine.loop import EngineLoop
from octavo.llm import Collected
from octavo.plan.cost import CostModel, StepTimes
from octavo.plan.memory import kv_layout
from octavo.plan.steps import StepLog


@dataclass
class Clock(OwnTime):
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def device_only(seconds: Callable[[StepShape], float]) -> Callable[[StepShape], StepTimes]:
    """Of a host that takes no time."""
    return lambda shape: StepTimes(0.0, seconds(shape))


@dataclass
class TimedStep:
    clock: Clock
    end_s: float
    output: StepOutput

    def result(self) -> StepOutput:
        self.clock.now_s = max(self.clock.now_s, self.end_s)
        return self.output


@dataclass
class TimedExecutor:
    """Launches a step, then runs it behind the others; who waits for a result, waits on the clock. The model repeats a prompt's last
    token."""

    clock: Clock
    times: Callable[[StepShape], StepTimes]
    loop: EngineLoop | None = None  # whose plans they are
    free_s: float = 0.0
    last_token: dict[int, int] = field(default_factory=dict)

    def submit(self, plan: Plan) -> TimedStep:
        assert self.loop is not None
        for admission in plan.admitted:
            self.last_token[admission.row] = admission.tokens[-1]
        launch_s, device_s = self.times(self.loop.scheduler.flight[-1].shape)
        ended_s = max(self.free_s, self.clock.now_s) + device_s
        self.clock.now_s += launch_s
        self.free_s = max(ended_s, self.clock.now_s)
        tokens = [[self.last_token[piece.row]] if piece.sample else [] for piece in plan.slices]
        return TimedStep(self.clock, self.free_s, StepOutput(plan.step, tokens))

    def sample(self, plan: Plan, masks: Any) -> None:
        raise AssertionError("no plan here has a grammar")

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class Machine:
    """Has the face of `LLM` that is measured, on a clock of its own."""

    def __init__(self, subject: Subject, truth: CostModel | None = None) -> None:
        settings, clock, inbox = subject.settings, Clock(), Collected()
        layout = kv_layout(subject.arch, settings)
        model = replace(truth or subject.costs, origin="known")
        executor, costs = TimedExecutor(clock, model.times), LearnedCosts(model, StepLog())
        scheduler = Scheduler(settings, KVCache(layout, settings.enable_prefix_caching), budget=step_budget(settings, costs))
        loop = executor.loop = EngineLoop(scheduler, executor, inbox, clock, settings.overlap_depth, costs)
        self.inside = loop, inbox
