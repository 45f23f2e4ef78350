"""The same laws under hypothesis, which chooses every call and shrinks what breaks."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.config.resolved import Resolved
from octavo.types import Request, SamplingParams
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout

MAX_MODEL_LEN = 24


class Machine(RuleBasedStateMachine):
    @initialize(
        block=st.integers(1, 5),
        windows=st.sampled_from([(None,), (None, 3), (5,), (None, 2, 6)]),
        spare=st.integers(0, 12),
        budget=st.integers(1, 16),
        rows=st.integers(1, 5),
        depth=st.integers(0, 3),
        drafts=st.sampled_from([0, 1, 3]),
        stages=st.sampled_from([1, 1, 2, 3]),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        partial=st.integers(1, 3),
        threshold=st.sampled_from([0, 4]),
        failing=st.lists(st.integers(1, 30), max_size=2),
    )
    def start(
        self, block: int, windows: tuple[int | None, ...], spare: int, budget: int, rows: int, depth: int, drafts: int, stages: int,
        caching: bool, policy: str, partial: int, threshold: int, failing: list[int],
    ) -> None:  # fmt: skip
        least = make_layout(1, block, windows).peak_blocks(MAX_MODEL_LEN - 1, budget)
        resolved = Resolved(
            max_model_len=MAX_MODEL_LEN, block_size=block, enable_prefix_caching=caching, max_num_seqs=rows, max_num_batched_tokens=budget,
            scheduling_policy=policy, max_num_partial_prefills=partial, long_prefill_token_threshold=threshold, overlap_depth=depth,
            num_speculative_tokens=drafts if stages == 1 else 0, pipeline_parallel_size=stages,
        )  # fmt: skip
        layout = make_layout(least + spare, block, windows)
        self.engine = Engine(resolved, layout, FakeModel(16, windows), failing=tuple(failing))
        self.names: list[str] = []

    @rule(
        base=st.integers(0, 2),
        shared=st.integers(0, MAX_MODEL_LEN - 1),
        own=st.lists(st.integers(1, 15), max_size=6),
        n=st.sampled_from([1, 1, 2, 3]),
        seed=st.integers(0, 2),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        ends=st.booleans(),
        salt=st.sampled_from([None, None, "salt"]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from([None, "x", "y"]),
        scored=st.booleans(),
    )
    def add(
        self, base: int, shared: int, own: list[int], n: int, seed: int, max_tokens: int | None, ends: bool, salt: str | None,
        priority: int, tenant: str | None, scored: bool,
    ) -> None:  # fmt: skip
        prompt = ([(base + i) % 15 + 1 for i in range(shared)] + own)[: MAX_MODEL_LEN - 1] or [1]
        name = f"r{len(self.names)}"
        self.names.append(name)
        params = SamplingParams(
            n=n, seed=seed, max_tokens=max_tokens, eos_token_ids=(0, 3) if ends else (), prompt_logprobs=1 if scored else None
        )
        self.engine.add(Request(name, tuple(prompt), params, cache_salt=salt, priority=priority, tenant=tenant))

    @precondition(lambda self: len(self.engine.flight) <= self.engine.settings.overlap_depth)
    @rule()
    def plan(self) -> None:
        self.engine.plan()

    @precondition(lambda self: self.engine.flight)
    @rule()
    def commit(self) -> None:
        self.engine.commit()

    @rule(steps=st.integers(1, 8))
    def loop(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @precondition(lambda self: self.names)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick: int) -> None:
        self.engine.abort(self.names[pick % len(self.names)])

    @precondition(lambda self: self.names)
    @rule(pick=st.integers(0, 99))
    def finish(self, pick: int) -> None:
        self.engine.finish(self.names[pick % len(self.names)], 0)

    @rule()
    def reset(self) -> None:
        self.engine.scheduler.reset_prefix_cache()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.run(20_000)
            self.engine.check_texts()
            self.engine.check_empty()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
