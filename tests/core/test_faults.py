"""Faults that were reported of other engines: each test shows that its kind cannot happen here."""

from __future__ import annotations

from collections.abc import Mapping, Sized

import pytest

from octavo.config.resolved import Resolved
from octavo.types import FinishReason, Request, SamplingParams
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout

BLOCK = 4


def build(num_blocks: int, **settings: object) -> Engine:
    audit = bool(settings.pop("audit", True))
    base = {"max_model_len": 64, "block_size": BLOCK, "max_num_seqs": 8, "max_num_batched_tokens": 32, "overlap_depth": 1}
    return Engine(Resolved(**{**base, **settings}), make_layout(num_blocks, BLOCK), FakeModel(), audit=audit)  # type: ignore[arg-type]


def ask(name: str, prompt: list[int], max_tokens: int = 8, priority: int = 0, **params: object) -> Request:
    return Request(name, tuple(prompt), SamplingParams(seed=1, max_tokens=max_tokens, **params), priority=priority)  # type: ignore[arg-type]


def test_two_that_hold_a_part_each_do_not_block_each_other() -> None:
    engine = build(20, max_model_len=80, max_num_batched_tokens=8)
    engine.add(ask("a", [1] * 68), ask("b", [2] * 48))
    for _ in range(60):
        engine.step()
    assert all(told.reason is FinishReason.LENGTH for told in engine.told.values())
    engine.check_texts()


def test_a_victim_is_not_in_the_plan_and_its_tokens_are_not_counted() -> None:
    engine = build(12, scheduling_policy="priority", overlap_depth=0, max_model_len=48, max_num_batched_tokens=8)
    engine.add(ask("low", [1] * 12, 30, priority=9))
    engine.step()
    engine.step()
    engine.add(ask("mid", [2] * 8, 20, priority=1), ask("high", [3] * 8, 20, priority=0))
    while engine.scheduler.has_work:
        before = {seq.row: seq.request_id for seq in engine.scheduler.running}
        plan = engine.plan()
        assert plan is not None
        planned = {piece.row for piece in plan.slices}
        fresh = {new.row for new in plan.admitted}
        assert not planned & (set(plan.retired) - fresh), before
        engine.commit()
    assert engine.scheduler.stats()["num_preemptions"] > 0
    engine.check_texts()


def test_equal_priorities_and_arrivals_do_not_compare_requests() -> None:
    engine = build(64, scheduling_policy="priority", max_num_seqs=2)
    engine.add(*(ask(f"r{i}", [3, 4, 5], n=3) for i in range(4)))
    engine.run()
    engine.check_texts()


def test_a_hit_is_looked_up_anew_for_every_attempt() -> None:
    engine = build(16, overlap_depth=0)
    engine.add(ask("first", list(range(1, 18)), 1))
    engine.run()
    engine.add(ask("fat", [30] * 40, 20))  # takes ten blocks, then evicts what "second" would have hit
    engine.step()
    engine.add(ask("second", list(range(1, 30)), 30))
    engine.run()
    engine.check_texts()
    assert engine.told["second", 0].num_cached_tokens < 16


def test_after_preemption_the_work_follows_from_the_new_hit() -> None:
    engine = build(8, max_model_len=32)
    engine.add(*(ask(f"r{i}", list(range(1, 13)), 19) for i in range(6)))
    engine.run()
    engine.check_texts()
    assert engine.scheduler.stats()["num_preemptions"] > 0


def test_a_prefix_computed_twice_at_once_frees_nothing_in_use() -> None:
    engine = build(24, max_num_batched_tokens=8, max_num_partial_prefills=3)
    twin = list(range(1, 22))
    engine.add(ask("a", twin, 12), ask("b", twin, 12))
    for _ in range(6):
        engine.step()
    engine.add(ask("c", [9] * 30, 12))
    engine.run()
    engine.check_texts()


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_abort_at_any_time_leaves_nothing(steps: int, depth: int) -> None:
    engine = build(18, max_num_batched_tokens=8, overlap_depth=depth, max_num_seqs=3)
    engine.add(*(ask(f"r{i}", list(range(i + 1, i + 16)), 20, n=1 + i % 2) for i in range(5)))
    for _ in range(steps):
        engine.step()
    for i in range(5):  # waiting, in the midst of the prompt, decoding, preempted
        engine.abort(f"r{i}")
    assert not engine.scheduler.has_work
    assert engine.cache.pool.num_free == 18
    engine.run()
    engine.check_texts()
    engine.check_empty()


def test_short_prompts_pass_a_long_one_and_decodes_never_pause() -> None:
    engine = Engine(
        Resolved(
            max_model_len=8192, block_size=16, max_num_seqs=64, max_num_batched_tokens=256, max_num_partial_prefills=2,
            long_prefill_token_threshold=128,
        ),
        make_layout(1024, 16), FakeModel(), audit=False,
    )  # fmt: skip
    engine.add(ask("long", [i % 31 + 1 for i in range(4096)], 2))
    engine.add(*(ask(f"s{i}", [i + 1] * 16, 30) for i in range(20)))
    decoding: set[int] = set()
    for _ in range(20):
        plan = engine.step()
        assert plan is not None
        rows = {piece.row for piece in plan.slices}
        assert decoding <= rows, "a decode was left out"
        decoding = {seq.row for seq in engine.scheduler.running if seq.request_id != "long" and seq.planned >= seq.fed}
    assert all(engine.told[f"s{i}", 0].first_step <= 6 for i in range(20))  # type: ignore[operator]
    engine.run()
    assert engine.told["long", 0].reason is FinishReason.LENGTH


@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 1.0])
def test_no_draft_changes_a_text(hit_rate: float) -> None:
    for depth in range(3):
        settings = Resolved(max_model_len=64, block_size=BLOCK, max_num_batched_tokens=32, overlap_depth=depth, num_speculative_tokens=3)
        engine = Engine(settings, make_layout(64, BLOCK), FakeModel(3), hit_rate=hit_rate, seed=depth)
        engine.add(ask("r", [1, 1, 1], 40))
        engine.run()
        engine.check_texts()


def test_no_container_grows_with_the_number_of_steps() -> None:
    engine = build(24, max_num_seqs=4, num_speculative_tokens=1, audit=False)
    sizes: list[dict[str, int]] = []
    number = 0
    while engine.steps < 6000:
        if len(engine.scheduler.waiting) < 3:
            number += 1
            engine.add(ask(f"r{number}", [number % 31 + 1, number % 7 + 1, *range(1, 12)], 6 + number % 9, n=1 + number % 2))
            if number % 5 == 0:
                engine.abort(f"r{number - 1}")
        engine.step()
        engine.plans.clear()
        if engine.steps % 2000 == 0:
            sizes.append(measure(engine.scheduler))
    assert number > 500
    assert max(sizes[-1].values()) <= 300, sizes[-1]  # 217 first blocks are all there are; steps and requests are many more


def measure(root: object) -> dict[str, int]:
    """Sizes of every container that can be reached from the scheduler, by path (texts and what a sequence holds left out)."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    todo = [("scheduler", root)]
    while todo:
        path, it = todo.pop()
        if id(it) in seen or isinstance(it, (str, bytes, int, float, type(None), type)) or path.count(".") > 8:
            continue
        seen.add(id(it))
        if isinstance(it, Sized):
            sizes[path] = max(sizes.get(path, 0), len(it))
        if isinstance(it, Mapping):
            todo += [(path + ".*", value) for value in it.values()]
        elif isinstance(it, (list, tuple, set)) or type(it).__name__ in ("deque", "Queue"):
            todo += [(path + ".*", value) for value in it]
        module = getattr(type(it), "__module__", "")
        if module.startswith("octavo.core") and module != "octavo.core.sequence":
            names = getattr(type(it), "__slots__", ()) or getattr(it, "__dict__", ())
            todo += [(f"{path}.{name}", getattr(it, name)) for name in names if not name.startswith("__")]
    assert len(sizes) > 10
    return sizes
