"""Workers without a model, for tests of processes: each step gives row + 100 for every slice."""

from __future__ import annotations

import os
import time

from octavo.core.plan import StepOutput


class Done:
    def __init__(self, output):
        self.output = output

    def result(self):
        return self.output


class FakeWorker:
    """Step 13 raises, step 14 ends the process, step 15 hangs, step 17 gives what cannot be sent."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def step(self, plan):
        if plan.step == 13:
            raise ValueError("unlucky step")
        if plan.step == 14:
            os._exit(3)
        if plan.step == 15:
            time.sleep(600)
        if plan.step == 17:
            return Done(StepOutput(plan.step, [[object()]]))
        return Done(StepOutput(plan.step, [[piece.row + 100 + self.rank] for piece in plan.slices]))

    def forward(self, plan):
        self.half = plan

    def sample(self, plan, masks):
        assert self.half == plan
        return Done(StepOutput(plan.step, [[mask] for mask in masks]))

    def enter_thread(self):
        pass

    def close(self):
        pass


def build(rank, flavour):
    if flavour == "broken" and rank == 1:
        raise ValueError("this rank has no device")
    return FakeWorker(rank), {"rank": rank, "pid": os.getpid()}
