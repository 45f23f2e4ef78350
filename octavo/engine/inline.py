"""The worker inside the engine process: one device, no hop. A step is launched by `submit`; on a GPU its result is awaited later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.core.plan import Plan, StepOutput
from octavo.engine.executor import OrderFailed, StepFuture


class Worker(Protocol):
    """The hands of one device (`octavo.worker.runner.Runner`)."""

    @property
    def orders(self) -> Mapping[str, Callable[..., Any]]:
        """What it can do between steps, by name: how features reach a worker without the runner's knowing them."""
        ...

    def step(self, plan: Plan) -> StepFuture: ...

    def forward(self, plan: Plan) -> None: ...

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> StepFuture: ...

    def enter_thread(self) -> None:
        """Called by a thread that will wait for results, before it does."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Deferred:
    """The future of a plan in two halves: there is nothing to wait for before its second half was given."""

    inner: StepFuture | None = None

    def result(self) -> StepOutput:
        assert self.inner is not None, "a masked plan is sampled before its result is asked for"
        return self.inner.result()


class InlineExecutor:
    """Runs plans on a worker in this process, in submission order."""

    def __init__(self, worker: Worker, keep: object = None) -> None:
        """`keep` lives as long as the worker."""
        self.worker, self._keep = worker, keep
        self._halves: dict[int, Deferred] = {}  # step -> the future its second half completes

    def submit(self, plan: Plan) -> StepFuture:
        if not plan.masked:
            return self.worker.step(plan)
        self.worker.forward(plan)
        return self._halves.setdefault(plan.step, Deferred())

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> None:
        self._halves.pop(plan.step).inner = self.worker.sample(plan, masks)

    def order(self, name: str, *args: Any) -> None:
        try:
            self.worker.orders[name](*args)
        except Exception as error:
            raise OrderFailed(f"{type(error).__name__}: {error}") from error

    def check(self) -> None:
        pass

    def close(self) -> None:
        self.worker.close()
