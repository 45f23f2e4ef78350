"""One engine on a fake clock: the real scheduler and cache, driven in the order of `engine/loop.py`, on a device that only takes time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from octavo.config.resolved import Resolved
from octavo.core.budget import Seconds, step_budget
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import KVLayout
from octavo.core.plan import Plan, StepOutput, StepShape
from octavo.core.router import Load
from octavo.core.scheduler import Scheduler
from octavo.plan.cost import StepTimes
from octavo.types import Request, SequenceOutput

NOTHING: list[int] = []


Times = Callable[[StepShape], StepTimes]


class Replica:
    """A scheduler, and a host and a device whose steps take `times(shape)`. `now_s` is the host's clock: it moves while a step is launched,
    and waits for what the loop would wait for.

    The model repeats a prompt's last token, so what it says is known without a device.
    """

    def __init__(self, settings: Resolved, layout: KVLayout, times: Times, foreseen: Seconds | None = None) -> None:
        """`foreseen`: what the engine takes a step to last, where that is not how long it does."""
        budget = step_budget(settings, foreseen or (lambda shape: max(times(shape))))
        self.scheduler = Scheduler(settings, KVCache(layout, settings.enable_prefix_caching), budget=budget)
        self.now_s = 0.0
        self.busy_s = 0.0  # of the device
        self.num_steps = 0
        self._times = times
        self._depth = settings.overlap_depth
        self._flight: deque[tuple[Plan, float, StepOutput]] = deque()
        self._free_s = 0.0  # when the device has done all that was submitted
        self._says = [NOTHING] * settings.max_num_seqs  # by row

    @property
    def busy(self) -> bool:
        return bool(self._flight) or self.scheduler.has_work

    @property
    def load(self) -> Load:
        return self.scheduler.load

    def receive(self, request: Request, at_s: float) -> None:
        """A request arrives at an engine that is idle, or before its next step. Raises InvalidRequest."""
        if not self.busy:
            self.now_s = max(self.now_s, at_s)
        self.scheduler.add([request])

    def step(self) -> Sequence[SequenceOutput]:
        """Once round the loop: plan, submit, and commit what has ended; the clock moves to its end."""
        plan = self.scheduler.plan(self.now_s)
        if plan is not None:
            self._submit(plan)
        if self._flight and (len(self._flight) > self._depth or plan is None):
            done, ended_s, output = self._flight.popleft()
            if ended_s > self.now_s:
                self.now_s = ended_s
            return self.scheduler.commit(done, output, self.now_s)
        return ()

    def _submit(self, plan: Plan) -> None:
        shape = self.scheduler.flight[-1].shape
        launch_s, device_s = self._times(shape)
        ended_s = (self._free_s if self._free_s > self.now_s else self.now_s) + device_s
        self.now_s += launch_s
        self._free_s = ended_s if ended_s > self.now_s else self.now_s  # the last of a step cannot run before it was launched
        self.busy_s += device_s
        self.num_steps += 1
        for admission in plan.admitted:
            self._says[admission.row] = [admission.tokens[-1]]
        if shape.num_sampled == shape.num_sequences:
            tokens = [self._says[piece.row] for piece in plan.slices]
        else:
            tokens = [self._says[piece.row] if piece.sample else NOTHING for piece in plan.slices]
        self._flight.append((plan, self._free_s, StepOutput(plan.step, tokens)))
