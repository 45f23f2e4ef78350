"""A device that takes as long as a function of the step says, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.core.plan import Plan, StepOutput, StepShape
from octavo.core.scheduler import Scheduler


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


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
    """Runs one step after the other; who waits for a result, waits on the clock. The model repeats a prompt's last token."""

    clock: Clock
    seconds: Callable[[StepShape], float]
    scheduler: Scheduler | None = None  # whose plans they are
    free_s: float = 0.0
    last_token: dict[int, int] = field(default_factory=dict)

    def submit(self, plan: Plan) -> TimedStep:
        assert self.scheduler is not None
        for admission in plan.admitted:
            self.last_token[admission.row] = admission.tokens[-1]
        self.free_s = max(self.free_s, self.clock.now_s) + self.seconds(self.scheduler.flight[-1].shape)
        tokens = [[self.last_token[piece.row]] if piece.sample else [] for piece in plan.slices]
        return TimedStep(self.clock, self.free_s, StepOutput(plan.step, tokens))

    def sample(self, plan: Plan, masks: Any) -> None:
        raise NotImplementedError("no plan here has a grammar")

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
