"""What the scheduler promises, one promise a test. That texts stay right under all of it is what tests/laws show."""

from __future__ import annotations

import pytest

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.plan import StepOutput
from octavo.core.scheduler import Scheduler
from octavo.core.sequence import draw
from octavo.types import FinishReason, InvalidRequest, Request, SamplingParams, TokenLogprobs
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout

BLOCK = 4


def build(num_blocks: int = 256, **settings: object) -> Engine:
    base = {"max_model_len": 128, "block_size": BLOCK, "max_num_seqs": 8, "max_num_batched_tokens": 32, "overlap_depth": 0}
    return Engine(Resolved(**{**base, **settings}), make_layout(num_blocks, BLOCK), FakeModel())  # type: ignore[arg-type]


def ask(name: str, num_prompt: int = 5, max_tokens: int | None = 8, *, priority: int = 0, **params: object) -> Request:
    first = sum(name.encode()) % 29
    prompt = tuple((first + i) % 31 + 1 for i in range(num_prompt))
    return Request(name, prompt, SamplingParams(seed=1, max_tokens=max_tokens, **params), priority=priority)  # type: ignore[arg-type]


def bare(**settings: object) -> Scheduler:
    """A scheduler without an executor: the test says what every step gives."""
    base = {"max_model_len": 64, "block_size": BLOCK, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    resolved = Resolved(**{**base, **settings})  # type: ignore[arg-type]
    return Scheduler(resolved, KVCache(make_layout(64, BLOCK), resolved.enable_prefix_caching))


def running(engine: Engine) -> list[str]:
    return [seq.request_id for seq in engine.scheduler.running]


class TestRefusals:
    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            (Request("r", (), SamplingParams()), "at least one token"),
            (ask("r", 128), "at most max_model_len - 1 = 127 tokens"),
            (ask("r", 60, 60), "needs 30 blocks and there are 20"),
            (ask("r", 5, None), "needs 32 blocks and there are 20"),
        ],
    )
    def test_what_can_never_fit_is_refused_with_the_numbers(self, request_: Request, words: str) -> None:
        scheduler = build(num_blocks=20).scheduler
        with pytest.raises(InvalidRequest, match=words):
            scheduler.check(request_)
        with pytest.raises(InvalidRequest, match=words):
            scheduler.add([request_])
        assert scheduler.idle

    def test_the_longest_prompt_makes_one_token(self) -> None:
        engine = build()
        engine.add(ask("r", 127, None))
        engine.run()
        assert len(engine.told["r", 0].tokens) == 1
        assert engine.told["r", 0].reason is FinishReason.LENGTH

    def test_a_live_id_is_refused_and_a_finished_one_is_not(self) -> None:
        engine = build()
        engine.add(ask("r"))
        for bad in ([ask("r")], [ask("new"), ask("new")]):
            with pytest.raises(InvalidRequest, match="in use"):
                engine.scheduler.add(bad)
        engine.run()
        engine.add(ask("r"))
        engine.run()
        engine.check_texts()

    def test_one_bad_request_of_several_adds_none(self) -> None:
        scheduler = build().scheduler
        with pytest.raises(InvalidRequest):
            scheduler.add([ask("good"), ask("bad", 500)])
        assert scheduler.idle
        scheduler.add([ask("good")])

    def test_a_pool_of_just_the_longest_sequence_finishes(self) -> None:
        for depth in range(4):
            for drafts in (0, 1, 3):
                engine = build(num_blocks=32, overlap_depth=depth, num_speculative_tokens=drafts)
                engine.add(*(ask(f"r{i}", 9, None) for i in range(4)))
                engine.run()
                engine.check_texts()
                assert all(len(told.tokens) == 119 for told in engine.told.values())


class TestBudget:
    def test_decodes_come_first_and_the_prompt_gets_the_rest(self) -> None:
        engine = build(max_num_batched_tokens=8, scheduling_policy="priority")
        engine.add(*(ask(f"d{i}", 2, 30) for i in range(4)))
        engine.step()
        engine.add(ask("long", 60, 4, priority=-9))  # before the others in order, but a chunk yields to decodes
        for _ in range(10):
            plan = engine.step()
            assert plan is not None
            assert sorted(piece.count for piece in plan.slices) == [1, 1, 1, 1, 4]

    def test_chunks_add_up_to_the_prompt(self) -> None:
        engine = build(max_num_batched_tokens=7)
        engine.add(ask("r", 23, 1))
        engine.run()
        assert [piece.count for plan in engine.plans for piece in plan.slices] == [7, 7, 7, 2]
        assert [piece.sample for plan in engine.plans for piece in plan.slices] == [False, False, False, True]

    def test_without_chunks_a_prompt_is_planned_whole_or_waits(self) -> None:
        engine = build(max_num_batched_tokens=128, enable_chunked_prefill=False, enable_prefix_caching=False)
        engine.add(ask("a", 100, 4), ask("b", 60, 4), ask("c", 20, 4))
        plans = [engine.step(), engine.step()]
        assert [[piece.count for piece in plan.slices] for plan in plans if plan] == [[100], [1, 60, 20]]
        engine.run()
        engine.check_texts()

    def test_a_request_reports_how_long_it_waited(self) -> None:
        scheduler = bare(max_num_seqs=1)
        scheduler.add([ask("a", 4, 2), ask("b", 4, 2)])
        news = []
        for now in (1.0, 2.5, 4.0, 5.5):
            plan = scheduler.plan(now)
            assert plan is not None
            news += scheduler.commit(plan, StepOutput(plan.step, [[9]]), now)
        assert [(said.request_id, said.queued_s) for said in news] == [("a", 0.0), ("a", None), ("b", 3.0), ("b", None)]


def test_tokens_and_blocks_do_not_wait_for_each_other() -> None:
    """A chunk yields its tokens to a decode that comes after it, and this waits for a block of those that the chunk's sequence holds."""
    settings = Resolved(
        max_model_len=30, block_size=1, max_num_seqs=2, max_num_batched_tokens=1, scheduling_policy="priority", pipeline_parallel_size=2
    )
    engine = Engine(settings, make_layout(29, 1), FakeModel())
    engine.add(ask("low", 1, None, priority=1))
    engine.step()
    engine.step()
    engine.add(ask("high", 20, 4, priority=0))
    engine.run(1000)
    engine.check_texts()
    assert engine.scheduler.stats()["num_preemptions"] == 1


class TestPartialPrefills:
    """Short prompts overtake long ones."""

    def test_a_long_prompt_is_cut_so_that_short_ones_pass(self) -> None:
        engine = build(max_num_batched_tokens=16, long_prefill_token_threshold=10, max_num_partial_prefills=2)
        engine.add(ask("long", 100, 2), ask("long2", 100, 2), *(ask(f"s{i}", 3, 2) for i in range(4)))
        plan = engine.step()
        assert plan is not None
        assert [piece.count for piece in plan.slices] == [10, 3, 3]
        assert running(engine) == ["long", "s0", "s1"]  # long2 waits: one long prompt at a time
        engine.run()
        engine.check_texts()

    @pytest.mark.parametrize("allowed", [1, 2, 3])
    def test_no_more_partial_prompts_than_allowed(self, allowed: int) -> None:
        engine = build(
            max_num_batched_tokens=24, long_prefill_token_threshold=6, max_num_partial_prefills=allowed, max_long_partial_prefills=allowed
        )
        engine.add(*(ask(f"l{i}", 40, 2) for i in range(4)))
        while engine.scheduler.has_work:
            engine.step()
            assert sum(seq.planned < seq.fed for seq in engine.scheduler.running) <= allowed
        engine.check_texts()


class TestPreemption:
    def test_the_newest_gives_way_and_its_text_is_unchanged(self) -> None:
        engine = build(num_blocks=10, max_model_len=40)
        engine.add(ask("a", 8, 30), ask("b", 8, 30))
        engine.run()
        engine.check_texts()
        assert engine.scheduler.stats()["num_preemptions"] > 0
        gone = [plan for plan in engine.plans if plan.retired]
        assert gone
        assert engine.told["a", 0].reason is FinishReason.LENGTH

    def test_the_lowest_priority_gives_way(self) -> None:
        engine = build(num_blocks=12, max_model_len=40, scheduling_policy="priority")
        engine.add(ask("low", 8, 30, priority=5))
        engine.step()
        engine.add(ask("high", 8, 30, priority=0))
        counts = {"low": 0, "high": 0}
        while engine.scheduler.has_work:
            engine.step()
            for seq in (*engine.scheduler.running, *engine.scheduler.waiting):
                counts[seq.request_id] = max(counts[seq.request_id], seq.num_preemptions)
        assert counts["low"] > 0
        assert counts["high"] == 0
        engine.check_texts()

    def test_a_preempted_sequence_waits_for_what_is_in_flight(self) -> None:
        engine = build(num_blocks=10, max_model_len=40, overlap_depth=2)
        engine.add(ask("a", 8, 30), ask("b", 8, 30))
        while engine.scheduler.has_work or engine.flight:
            pending = {seq for seq in engine.scheduler.waiting if seq.pending}
            engine.step()
            assert not any(seq.row >= 0 for seq in pending if seq.pending)
        engine.check_texts()

    def test_forty_priorities_do_not_starve_the_last(self) -> None:
        scheduler = bare(max_num_seqs=1, scheduling_policy="priority")
        scheduler.add([Request("low", (1, 2), SamplingParams(max_tokens=1), arrival_s=0.0, priority=1)])
        ended: list[str] = []
        for step in range(100):
            arrival_s = float(step)
            scheduler.add([Request(f"high{step}", (1, 2), SamplingParams(max_tokens=1), arrival_s=arrival_s, priority=0)])
            plan = scheduler.plan(arrival_s)
            assert plan is not None
            ended += [said.request_id for said in scheduler.commit(plan, StepOutput(plan.step, [[9]]), arrival_s)]
        assert "low" in ended


class TestEnding:
    def outcome(self, params: SamplingParams, tokens: list[int], **settings: object) -> tuple[list[int], object, object]:
        scheduler = bare(**settings)
        scheduler.add([Request("r", (1, 2, 3), params)])
        made: list[int] = []
        for token in tokens:
            plan = scheduler.plan(0.0)
            assert plan is not None
            for said in scheduler.commit(plan, StepOutput(plan.step, [[token]]), 0.0):
                made += said.token_ids
                if said.finish_reason:
                    assert scheduler.idle
                    return made, said.finish_reason.value, said.stop_reason
        return made, None, None

    def test_the_models_end_id(self) -> None:
        params = SamplingParams(eos_token_ids=(7,), max_tokens=9)
        assert self.outcome(params, [4, 5, 7, 6]) == ([4, 5, 7], "stop", None)

    def test_the_callers_stop_id_is_named(self) -> None:
        params = SamplingParams(eos_token_ids=(7,), stop_token_ids=[8, 7], max_tokens=9)
        assert self.outcome(params, [4, 8]) == ([4, 8], "stop", 8)
        assert self.outcome(params, [4, 7]) == ([4, 7], "stop", None)

    def test_ignored_end_ids_do_not_end(self) -> None:
        params = SamplingParams(eos_token_ids=(7,), ignore_eos=True, max_tokens=3)
        assert self.outcome(params, [7, 7, 7]) == ([7, 7, 7], "length", None)
        params = SamplingParams(eos_token_ids=(7,), stop_token_ids=[7], ignore_eos=True, max_tokens=3)
        assert self.outcome(params, [4, 7]) == ([4, 7], "stop", 7)

    def test_no_end_before_min_tokens(self) -> None:
        params = SamplingParams(eos_token_ids=(7,), stop_token_ids=[8], min_tokens=3, max_tokens=9)
        assert self.outcome(params, [7, 8, 7, 7, 7]) == ([7, 8, 7, 7], "stop", None)

    def test_an_end_id_at_the_full_length_is_a_stop(self) -> None:
        assert self.outcome(SamplingParams(eos_token_ids=(7,), max_tokens=2), [4, 7]) == ([4, 7], "stop", None)

    def test_no_max_tokens_means_the_models_length(self) -> None:
        made, reason, _ = self.outcome(SamplingParams(max_tokens=None), [5] * 20, max_model_len=12)
        assert (len(made), reason) == (9, "length")

    def test_tokens_after_the_end_in_one_step_are_dropped(self) -> None:
        scheduler = bare(num_speculative_tokens=3)
        params = SamplingParams(eos_token_ids=(7,), max_tokens=9, logprobs=0)
        scheduler.add([Request("r", (1, 2, 3), params)])
        for tokens in ([4], [5, 7, 6]):
            plan = scheduler.plan(0.0)
            assert plan is not None
            logprobs = {0: [TokenLogprobs((token,), (-1.0,), 1) for token in tokens]}
            (said,) = scheduler.commit(plan, StepOutput(plan.step, [tokens], [3], logprobs), 0.0)
            assert len(said.logprobs) == len(said.token_ids)
        assert said.token_ids == (5, 7)
        assert said.finish_reason is FinishReason.STOP

    def test_an_ended_sequence_costs_at_most_depth_slices(self) -> None:
        for depth in range(4):
            engine = build(overlap_depth=depth)
            engine.add(Request("r", (1, 2, 3), SamplingParams(seed=3, max_tokens=60, eos_token_ids=tuple(range(8)))))
            engine.run()
            assert engine.told["r", 0].reason is FinishReason.STOP
            assert engine.scheduler.stats()["slices_ignored"] <= depth

    def test_the_front_ends_a_sequence_and_tokens_past_it_are_counted(self) -> None:
        engine = build()
        engine.add(ask("a", 4, 50, n=1), ask("b", 4, 50))
        for _ in range(6):
            engine.step()
        engine.scheduler.finish("a", 0, FinishReason.STOP, 2)
        engine.told["a", 0].by_front = True
        engine.told["a", 0].reason = FinishReason.STOP
        assert engine.scheduler.stats()["tokens_past_finish"] == 4
        engine.scheduler.finish("a", 0, FinishReason.STOP, 2)  # again, and of unknown ones: nothing happens
        engine.scheduler.finish("nobody", 3, FinishReason.STOP, 2)
        engine.scheduler.abort("nobody")
        engine.run()
        engine.check_texts()
        engine.check_empty()


class TestFailure:
    def test_a_failed_step_ends_its_sequences_and_no_others(self) -> None:
        engine = build()
        engine.executor.failing = {3}
        engine.add(ask("a", 4, 9), ask("b", 4, 9))
        engine.step()
        engine.step()
        engine.step()
        engine.add(ask("c", 4, 9))
        engine.run()
        assert [engine.told[name, 0].reason for name in "abc"] == [FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH]
        engine.check_texts()
        engine.check_empty()

    def test_what_a_failed_step_should_have_written_is_found_by_nobody(self) -> None:
        for depth in range(4):
            engine = build(overlap_depth=depth)
            engine.executor.failing = {1}
            engine.add(ask("a", 20, 4))
            engine.step()
            engine.add(Request("b", ask("a", 20).prompt_token_ids, SamplingParams(seed=1, max_tokens=4)))  # hits a's blocks, if in flight
            engine.run()
            assert engine.told["a", 0].reason is FinishReason.ERROR
            assert engine.told["b", 0].reason is FinishReason.LENGTH
            engine.check_texts()
            engine.check_empty()

    def test_one_preempted_meanwhile_starts_again_from_what_is_known(self) -> None:
        engine = build(overlap_depth=2)
        engine.executor.failing = {1}
        prompt = ask("a", 20).prompt_token_ids
        engine.add(Request("a", prompt, SamplingParams(seed=1, max_tokens=4)))
        engine.plan()
        engine.add(Request("b", prompt, SamplingParams(seed=1, max_tokens=4)))
        engine.plan()  # b reads what a's step should have written, and samples
        (b,) = [seq for seq in engine.scheduler.running if seq.request_id == "b"]
        assert b.pending == 1
        engine.scheduler.running.remove(b)
        engine.scheduler._preempt(b)
        engine.run()
        assert engine.told["b", 0].reason is FinishReason.LENGTH
        engine.check_texts()
        engine.check_empty()

    def test_blocks_of_an_error_are_not_registered_when_given_up(self) -> None:
        engine = build()
        engine.executor.failing = {9}
        engine.add(ask("a", 4, 30))
        for _ in range(9):
            engine.step()
        assert engine.told["a", 0].reason is FinishReason.ERROR
        assert engine.cache.pool.num_cached == 0

    def test_a_step_that_could_not_be_submitted_is_failed_before_older_ones(self) -> None:
        scheduler = bare()
        scheduler.add([ask("a", 4, 9)])
        first = scheduler.plan(0.0)
        scheduler.add([ask("b", 4, 9)])
        second = scheduler.plan(0.0)
        assert first is not None
        assert second is not None
        assert {said.request_id for said in scheduler.fail(second, "no")} == {"a", "b"}
        assert scheduler.commit(first, StepOutput(first.step, [[9]]), 0.0) == []
        assert scheduler.idle

    def test_one_bad_sequence_of_a_step(self) -> None:
        scheduler = bare()
        scheduler.add([ask("a", 6, 9), ask("b", 6, 9)])
        plan = scheduler.plan(0.0)
        assert plan is not None
        news = scheduler.commit(plan, StepOutput(plan.step, [[], [9]], failed={0: "NaN logits"}), 0.0)
        assert [(said.request_id, said.finish_reason, said.stop_reason) for said in news] == [
            ("a", FinishReason.ERROR, "NaN logits"),
            ("b", None, None),
        ]
        assert scheduler.cache.pool.num_cached == 0
        assert len(scheduler.running) == 1


class TestPipeline:
    @pytest.mark.parametrize("stages", [2, 3, 4])
    def test_plans_in_flight_share_the_decodes_out(self, stages: int) -> None:
        engine = build(pipeline_parallel_size=stages, overlap_depth=stages - 1)
        engine.add(*(ask(f"r{i}", 3, 20) for i in range(8)))
        for _ in range(3 * stages):
            engine.step()
        assert len(engine.flight) == stages - 1
        sizes = [len(plan.slices) for plan in engine.plans[-stages:]]
        assert sum(sizes) == 8
        assert max(sizes) == -(-8 // stages)
        engine.run()
        engine.check_texts()

    def test_chunks_of_one_prompt_follow_each_other_without_waiting(self) -> None:
        engine = build(pipeline_parallel_size=3, overlap_depth=2, max_num_batched_tokens=8)
        engine.add(ask("r", 40, 2))
        for _ in range(3):
            engine.step()
        assert [[piece.count for piece in plan.slices] for plan in engine.plans] == [[8], [8], [8]]
        engine.run()
        engine.check_texts()


def test_seeds_differ_by_request_and_repeat() -> None:
    seeds = [draw(0, number) for number in range(1000)]
    assert len(set(seeds)) == 1000
    assert seeds == [draw(0, number) for number in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert draw(1, 5) != draw(0, 5)


def test_stats_name_what_happens() -> None:
    engine = build(num_blocks=40, num_speculative_tokens=2)
    engine.add(ask("a", 9, 12), ask("b", 9, 12))
    engine.step()
    stats = engine.scheduler.stats()
    assert stats["num_requests_running"] == 2
    assert 0 < stats["kv_cache_usage"] < 1
    engine.run()
    stats = engine.scheduler.stats()
    assert (stats["prompt_tokens"], stats["generation_tokens"], stats["kv_cache_usage"]) == (18, 24, 0)
    assert 0 < stats["draft_tokens_accepted"] <= stats["draft_tokens"]
    assert stats["num_steps"] == len(engine.plans)
