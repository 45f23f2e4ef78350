"""Drives a scheduler against the fake executor and checks the laws at every step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from octavo.config.resolved import Resolved
from octavo.core.budget import step_budget
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import KVLayout
from octavo.core.limits import Limit
from octavo.core.plan import Plan, StepShape
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import Sequence
from octavo.types import FinishReason, Request
from tests.laws.fake import FakeExecutor, FakeModel, FakeStep


def step_s(shape: StepShape) -> float:
    """How long a step takes, where a target asks for it."""
    return shape.num_tokens + 0.02 * shape.prefill_pairs + 0.01 * shape.decode_context


@dataclass
class Told:
    """What the front has heard of one continuation."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    num_cached_tokens: int | None = None
    cache_miss: str | None = None
    prompt_logprobs: list[int] = field(default_factory=list)
    by_front: bool = False  # the front ended it
    first_step: int | None = None


class Engine:
    """The loop of the engine, on a clock that counts steps, with a front that listens."""

    def __init__(
        self, settings: Resolved, layout: KVLayout, model: FakeModel, *, hit_rate: float = 0.5, seed: int = 0,
        limits: tuple[Limit, ...] = (), failing: tuple[int, ...] = (), cache: KVCache | None = None, audit: bool = True,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.model = model
        self.cache = cache or KVCache(layout, settings.enable_prefix_caching)
        self.scheduler = Scheduler(settings, self.cache, limits, step_budget(settings, step_s))
        self.executor = FakeExecutor(
            layout, settings.max_num_seqs, model, num_stages=settings.pipeline_parallel_size, num_drafts=settings.num_speculative_tokens,
            hit_rate=hit_rate, seed=seed, failing=failing,
        )  # fmt: skip
        self.flight: deque[tuple[Plan, FakeStep]] = deque()
        self.requests: dict[str, Request] = {}
        self.told: dict[tuple[str, int], Told] = {}
        self.steps = 0
        self.plans: list[Plan] = []
        self._audit = audit

    def add(self, *requests: Request) -> None:
        self.scheduler.add(requests)
        for request in requests:
            self.requests[request.id] = request
            for index in range(request.params.n):
                self.told[request.id, index] = Told()

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        for (name, _), told in self.told.items():
            if name == request_id and told.reason is None:
                told.reason, told.by_front = FinishReason.ABORT, True

    def finish(self, request_id: str, index: int) -> None:
        told = self.told[request_id, index]
        if told.reason is None:
            told.reason, told.by_front = FinishReason.STOP, True
            self.scheduler.finish(request_id, index, FinishReason.STOP, max(0, len(told.tokens) - 1))

    def step(self) -> Plan | None:
        plan = self.plan()
        if self.flight and (len(self.flight) > self.settings.overlap_depth or plan is None):
            self.commit()
        return plan

    def plan(self) -> Plan | None:
        """Make a plan, if there is something to plan, and submit it."""
        self.steps += 1
        plan = self.scheduler.plan(float(self.steps))
        if plan is not None:
            self._check_plan(plan)
            self.plans.append(plan)
            self.flight.append((plan, self.executor.submit(plan)))
            self._check_written()
        if self._audit:
            audit(self.scheduler)
        return plan

    def commit(self) -> None:
        """Take the outcome of the oldest plan in flight."""
        self._commit(*self.flight.popleft())
        if self._audit:
            audit(self.scheduler)

    def run(self, max_steps: int = 100_000) -> None:
        """Until everything has ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_work and not self.flight:
                return
            self.step()
        raise AssertionError(f"no end after {max_steps} steps: {self.scheduler.running.items} {self.scheduler.waiting.items[:5]}")

    def check_texts(self) -> None:
        """Every text equals plain recursion; what the front ended is a beginning of it."""
        for (name, index), told in self.told.items():
            request = self.requests[name]
            assert request.params.seed is not None
            tokens, reason = self.model.expected(request, request.params.seed, index, self.settings.max_model_len)
            if told.by_front or told.reason is FinishReason.ERROR:
                assert told.tokens == tokens[: len(told.tokens)]
            else:
                assert told.tokens == tokens, (name, index)
                assert told.reason is not None
                assert told.reason.value == reason
                if request.params.prompt_logprobs is not None and index == 0:
                    assert told.prompt_logprobs == list(request.prompt_token_ids[1:])

    def check_empty(self) -> None:
        """Nothing is left of requests that have ended."""
        scheduler = self.scheduler
        assert scheduler.idle
        assert not scheduler.running.items
        assert not scheduler.waiting.items
        assert not scheduler._live
        assert not scheduler._unseen or scheduler.plan(0.0) is None
        assert sorted(scheduler._rows) == list(range(self.settings.max_num_seqs))
        assert len(scheduler._retired) <= 2 * self.settings.max_num_seqs
        assert self.cache.pool.num_free == self.cache.pool.num_blocks
        assert self.cache.usage == 0
        assert self.cache.reset()
        assert self.cache.pool.num_cached == 0
        assert len(self.cache.tree) == 0
        assert not any(self.cache.pool.users)

    def _commit(self, plan: Plan, step: FakeStep) -> None:
        try:
            output = step.result()
        except RuntimeError as error:
            news = self.scheduler.fail(plan, str(error))
        else:
            news = self.scheduler.commit(plan, output, float(self.steps))
        heard: set[tuple[str, int]] = set()
        for said in news:
            key = (said.request_id, said.index)
            assert key not in heard
            heard.add(key)
            told = self.told[key]
            assert told.reason is None, "news of a sequence that has ended"
            if said.token_ids and told.first_step is None:
                told.first_step = self.steps
                assert said.num_cached_tokens is not None
                assert said.queued_s is not None
                told.num_cached_tokens, told.cache_miss = said.num_cached_tokens, said.cache_miss
            else:
                assert said.num_cached_tokens is None
            told.tokens += said.token_ids
            asked = self.requests[said.request_id].params.logprobs is not None
            assert [entry.token_ids[0] for entry in said.logprobs] == (list(said.token_ids) if asked else [])
            told.prompt_logprobs += [entry.token_ids[0] for entry in said.prompt_logprobs]
            told.reason = said.finish_reason

    def _check_plan(self, plan: Plan) -> None:
        settings = self.settings
        assert plan.slices
        assert plan.num_tokens <= settings.max_num_batched_tokens
        rows = [piece.row for piece in plan.slices]
        assert len(set(rows)) == len(rows)
        assert all(piece.count > 0 for piece in plan.slices)
        flying = self.scheduler.flight
        if settings.pipeline_parallel_size > 1:
            sampling = Counter(
                id(seq) for flight in flying for piece, seq in zip(flight.plan.slices, flight.sequences)
                if piece.sample and piece.generation == seq.generation
            )  # fmt: skip
            assert not sampling or max(sampling.values()) == 1, "plans in flight hold disjoint sampling sequences"
            alive = len(self.scheduler.running) + len(self.scheduler.waiting)
            assert sum(piece.sample for piece in plan.slices) <= -(-alive // settings.pipeline_parallel_size)
        for seq in flying[-1].sequences:
            assert seq.planned <= seq.bound
        self._check_shape(plan)

    def _check_shape(self, plan: Plan) -> None:
        """The counts that the cost model reads are those of the slices."""
        flight = self.scheduler.flight[-1]
        shape, both = flight.shape, list(zip(plan.slices, flight.sequences))
        chunks = [(piece.count, seq.planned) for piece, seq in both if piece.tokens]
        assert (shape.num_tokens, shape.num_sequences) == (plan.num_tokens, len(plan.slices))
        assert shape.num_sampled == sum(piece.sample for piece in plan.slices)
        assert shape.prefill_tokens == sum(count for count, _ in chunks)
        assert shape.prefill_pairs == sum(sum(range(end - count + 1, end + 1)) for count, end in chunks)
        waiting = [seq for seq in self.scheduler.running if seq not in flight.sequences]  # for blocks or tokens: they count as if they ran
        assert shape.decode_context == sum(seq.planned for piece, seq in both if not piece.tokens) + sum(seq.planned for seq in waiting)

    def _check_written(self) -> None:
        for block in self.executor.devices[0].written:
            assert self.cache.pool.users[block] == 1, "only an unshared block is written"


def audit(scheduler: Scheduler) -> None:
    """The laws of the pool and of the counters, between any two calls."""
    pool = scheduler.cache.pool
    groups = scheduler.cache.layout.groups
    users = [0] * pool.num_blocks
    group_of: dict[int, int] = {}
    for seq in scheduler.running:
        for number, table in enumerate(seq.blocks):
            for block in table[seq.dropped[number] :]:
                users[block] += 1
                assert group_of.setdefault(block, number) == number, "a block in two groups"
            assert len(table) == -(-seq.planned // groups[number].block_tokens), "neither fewer blocks than planned tokens need nor more"
        _check_counters(seq)
        assert seq.row >= 0
    for seq in scheduler.waiting:
        _check_counters(seq)
        assert seq.row < 0
        assert not any(seq.blocks)
    assert users == pool.users, "as many users as tables"
    assert scheduler._context == sum(seq.planned for seq in scheduler.running)
    used = sum(count > 0 for count in users)
    assert used + pool.num_free == pool.num_blocks
    assert pool.num_cached <= pool.num_free
    orders = [seq.order for seq in scheduler.running]
    assert orders == sorted(orders)
    assert len(scheduler.running) + len(scheduler._rows) == scheduler.settings.max_num_seqs


def _check_counters(seq: Sequence) -> None:
    assert seq.want >= 0
    assert 0 <= seq.planned <= seq.bound
    assert 0 <= seq.unsure <= seq.pending
    assert not seq.ended
