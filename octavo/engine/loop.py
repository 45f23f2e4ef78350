"""The engine's loop: receive, plan, submit, commit. One loop at any depth; depth 1 hides the host's work behind the device's."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from octavo.config.resolved import Resolved
from octavo.core.budget import step_budget
from octavo.core.plan import Plan
from octavo.core.scheduler import Scheduler
from octavo.engine.costs import LearnedCosts
from octavo.engine.executor import Executor, ExecutorDead, StepFuture
from octavo.engine.grammars import Grammars, no_vocabulary
from octavo.engine.lockstep import Alone, Others
from octavo.engine.messages import Abort, Add, Ask, Command, Finish, Outbox, Stop
from octavo.engine.orders import Ahead, Order, order_workers
from octavo.engine.sizes import Sizes
from octavo.engine.sleep import Sleep
from octavo.engine.watch import Watch
from octavo.plan.steps import Launched, StepLog
from octavo.types import FinishReason, InvalidRequest, Request, SequenceOutput

log = logging.getLogger(__name__)


class EngineLoop:
    """Drives one scheduler and one executor. Not thread-safe: one thread calls `handle` and `step`."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, outbox: Outbox, clock: Callable[[], float], depth: int = 1,
        costs: LearnedCosts | None = None, grammars: Grammars | None = None, others: Others | None = None,
        ahead: Iterable[Order] = (),
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.executor = executor
        self.outbox = outbox
        self.clock = clock
        self.depth = depth
        self.flight: deque[tuple[Plan, StepFuture, Launched]] = deque()
        self.step_ended_at_s = clock()
        self.step_tokens, self.step_sequences = Sizes(), Sizes()
        self.costs = costs
        self.step_log = costs.log if costs else StepLog()
        self.watch = Watch(costs, self.step_ended_at_s)
        self.grammars = grammars or Grammars(no_vocabulary, clock)
        self.others = others or Alone()
        self.wakes = self.others.wakes
        self.stopping = False
        self.ahead = Ahead(partial(order_workers, self), ahead)
        self.expert_tokens: dict[int, dict[int, int]] = {}  # by layer and expert, as last told
        self.sleep = Sleep(self)
        self._questions: dict[str, Callable[..., Any]] = {
            **self.sleep.orders,
            "stats": self.stats,
            "step_log": lambda: self.step_log.timings(),
            "advice": lambda: self.watch.findings(self.scheduler, self.clock()),
            "load": lambda: self.scheduler.load,
            "reset_prefix_cache": lambda: self.scheduler.reset_prefix_cache(),
        }

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do; else the caller blocks until a command comes."""
        return bool(self.flight) or self.scheduler.has_work or self.others.waiting

    def handle(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Add():
                    self._add(command)
                case Finish(request_id, index, reason, num_tokens):
                    self.scheduler.finish(request_id, index, reason, num_tokens)
                    self.grammars.forget(request_id, index)
                case Abort(request_id):
                    self.scheduler.abort(request_id)
                    self.grammars.forget(request_id)
                case Ask():
                    self.outbox.answer(command, self.ask(command.what, *command.args))
                case Stop():
                    self.stopping = True
                    if not command.drain:
                        self.scheduler.abort_all()
                        self.grammars.forget_all()

    def step(self) -> None:
        now_s = self.clock()
        self.step_log.begin(now_s)
        if self.grammars.active:
            self._tell(self.grammars.collect())
        plan = self.others.together(self.scheduler.plan(now_s))
        if plan is not None:
            self._submit(plan)
        elif not self.flight:
            self.grammars.wait()
        if self.flight and (len(self.flight) > self.depth or plan is None):
            self.commit()

    def adjust(self, settings: Resolved) -> None:
        """Go on with other settings: those that the scheduler alone reads, and that need no more memory. Only while nothing runs."""
        assert self.costs is not None, "an engine knows what its steps cost"
        self.scheduler = self.scheduler.successor(settings, step_budget(settings, self.costs))
        self.watch = Watch(self.costs, self.clock())

    def admit(self, request: Request) -> None:
        """Raise `InvalidRequest` for what can never run here, with the numbers."""
        self.scheduler.check(request)

    def check(self) -> None:
        """Raise `ExecutorDead` if no further step could run."""
        self.executor.check()

    def close(self) -> None:
        self.flight.clear()
        self.grammars.close()
        self.executor.close()

    def _add(self, add: Add) -> None:
        if not self.busy:
            self.step_log.rest()
        try:
            self.sleep.check()
            self.scheduler.add([add.request])
        except InvalidRequest as refusal:
            self.outbox.send([
                SequenceOutput(add.request.id, index, finish_reason=FinishReason.ERROR, stop_reason=str(refusal))
                for index in range(add.request.params.n)
            ])
        else:
            self.grammars.add(add.request)

    def _submit(self, plan: Plan) -> None:
        try:
            self.flight.append((plan, self.executor.submit(plan), self.step_log.launched(self.clock())))
        except Exception as error:
            self._failed(plan, error)
        else:
            if plan.masked:
                self._sample(plan)

    def _sample(self, plan: Plan) -> None:
        """Second half of the newest plan: masks hang on all tokens before it, so the plans ahead of it are committed first."""
        while self.flight[0][0] is not plan:
            self.commit()
        masks, ended = self.grammars.masks(plan, self.scheduler.flight[-1].sequences)
        self._tell(ended)
        try:
            self.executor.sample(plan, masks)
        except Exception as error:
            self.flight.pop()
            self._failed(plan, error)

    def _tell(self, news: list[SequenceOutput]) -> None:
        """Send news, with what constraints make of them."""
        if self.grammars.active:
            news = self.grammars.follow(news)
            for said in news:
                if said.finish_reason is not None:
                    self.scheduler.finish(said.request_id, said.index, said.finish_reason)
        self.outbox.send(news)

    def commit(self) -> None:
        """Wait for the oldest step in flight, and tell what it gave."""
        plan, future, launched = self.flight.popleft()
        try:
            output = future.result()
        except Exception as error:
            self._failed(plan, error)
            return
        now_s = self.clock()
        self.step_ended_at_s = now_s
        if output.expert_tokens is not None:
            self.expert_tokens = {layer: dict(enumerate(counts)) for layer, counts in output.expert_tokens.items()}
        if not plan.slices:
            return  # others' step
        shape = self.scheduler.flight[0].shape
        seconds = self.step_log.end(shape, launched, now_s)
        self.watch.step(self.scheduler, shape, seconds, now_s)
        if self.costs is not None:
            self.costs.saw(shape, seconds, self.scheduler.settings.target_itl_s)
        self.step_tokens.add(shape.num_tokens)
        self.step_sequences.add(shape.num_sequences)
        self._tell(self.scheduler.commit(plan, output, now_s))

    def _failed(self, plan: Plan, error: Exception) -> None:
        """A step raised: its sequences end with the reason, all others go on, unless no further step could run. Raises `ExecutorDead`."""
        self.others.failed(error)
        if isinstance(error, ExecutorDead):
            raise error
        log.error("step %d failed, its %d sequences end: %r", plan.step, len(plan.slices), error, exc_info=error)
        self.step_ended_at_s = self.clock()
        self.step_log.rest()
        self._tell(self.scheduler.fail(plan, f"{type(error).__name__}: {error}"))

    def ask(self, what: str, *args: Any) -> Any:
        """The answer to a question as in `Ask`; one that is not known here is an order to the workers."""
        return self._questions[what](*args) if what in self._questions else order_workers(self, what, *args)

    def stats(self) -> dict[str, object]:
        """Gauges and counters as plain data; `EngineStats` on the front's side gives them names."""
        return {
            **self.scheduler.stats(),
            "steps_ended_at_s": self.step_ended_at_s,
            "now_s": self.clock(),
            "expert_tokens": self.expert_tokens,
            "sleep_level": self.sleep.level,
            **(self.costs.expected(self.scheduler.settings) if self.costs else {}),
            "prompt_steps": self.costs.prompt_steps(self.scheduler) if self.costs else {},
            "histograms": {"iteration_tokens_total": self.step_tokens.by_bound(), "batch_size": self.step_sequences.by_bound()},
        }
