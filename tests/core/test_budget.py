"""Targets for latencies: how much a step takes is decided by what it would cost."""

from __future__ import annotations

from random import Random

import pytest

from octavo.config.resolved import Resolved
from octavo.core.budget import AIM, SPARED, FixedBudget, Piece, TargetBudget, Work, step_budget
from octavo.core.plan import StepShape
from octavo.core.sequence import Sequence
from octavo.plan.cost import StepTimes
from octavo.simulate.fleet import simulate
from octavo.simulate.load import Kind, Synthetic
from octavo.simulate.result import percentile, summarize
from octavo.types import Request, SamplingParams
from tests.laws.fake import make_layout

MOST = 8192


def seconds(shape: StepShape) -> float:
    """About an 8B model on a large GPU."""
    return 4e-3 + 22e-6 * shape.num_tokens + 1.1e-9 * shape.prefill_pairs + 3e-8 * shape.decode_context + 4e-6 * shape.num_sequences


def sequence(num_prompt: int, planned: int = 0, seen_s: float = 0.0) -> Sequence:
    seq = Sequence(Request("r", (1,) * num_prompt, SamplingParams(max_tokens=50)), 0, 0, (0.0, 0, 0), 1 << 16, 1)
    seq.planned, seq.fed, seq.seen_s = planned, num_prompt, seen_s
    return seq


def test_without_targets_a_step_has_one_budget() -> None:
    assert step_budget(Resolved(max_num_batched_tokens=77), seconds) == FixedBudget(77)


def test_the_work_of_a_step_is_counted_as_the_scheduler_counts_it() -> None:
    work = Work.of([sequence(100, 130), sequence(500, 200), sequence(90, 90)], [sequence(60), sequence(40)], MOST)
    assert work[:3] == (2, 2, 220)
    assert [piece[:2] for piece in work.pieces] == [(200, 300), (0, 60), (0, 40)]
    pairs = 300 * 200 + 300 * 301 // 2 + 30 * 31 // 2
    assert work.shape(330) == StepShape(332, 4, 3, 330, pairs, 220)
    assert work.shape(0) == StepShape(2, 2, 2, 0, 0, 220)


def test_a_step_stays_under_the_target_whenever_it_can_but_for_a_few_gaps() -> None:
    draw, budget = Random(1), TargetBudget(seconds, MOST, itl_s=0.04)
    gaps = late = 0
    for _ in range(300):
        running = [sequence(100, 100 + draw.randint(0, 4000)) for _ in range(draw.choice([0, 1, 5, 60, 200]))]
        partial = [sequence(draw.randint(1000, 6000), draw.randint(1, 900))] if draw.random() < 0.4 else []
        waiting = [sequence(draw.choice([30, 4000])) for _ in range(draw.choice([0, 0, 1, 9]))]
        tokens = budget.tokens(running + partial, waiting, 0.0)
        assert max(1, len(running)) <= tokens <= MOST
        work = Work.of(running + partial, waiting, MOST)
        if not running or not work.pieces:
            assert tokens == MOST
            continue
        n = tokens - work.num_tokens
        gaps += len(running)
        if seconds(work.shape(n)) > AIM * 0.04:
            if n == 0:
                assert seconds(work.shape(0)) > AIM * 0.04, "decodes alone take longer"
            else:
                late += len(running)
        elif n < sum(piece.rest for piece in work.pieces) and tokens < MOST:
            assert seconds(work.shape(n + max(2, n >> 5))) > AIM * 0.04, "as much as the target allows"
    assert 0 < late <= SPARED * gaps + 4 * 200


@pytest.mark.parametrize(("waited_s", "rest", "expected"), [(0.0, 1000, 62), (0.0, 4000, 250), (0.2, 4000, 4000)])
def test_prompts_are_spread_over_steps_as_long_as_they_come_in_time(waited_s: float, rest: int, expected: int) -> None:
    budget = TargetBudget(seconds, MOST, ttft_s=0.6)
    running = [sequence(100, 200), sequence(100, 300)]
    n = budget.tokens(running, [sequence(rest, seen_s=0.0)], waited_s) - 2
    assert n == expected


def test_a_prompt_is_read_at_once_where_nobody_decodes() -> None:
    budget = TargetBudget(seconds, MOST, itl_s=0.001, ttft_s=10.0)
    assert budget.tokens([sequence(5000, 100)], [sequence(9)], 0.0) == MOST


def test_the_shape_of_no_prompt_is_that_of_the_decodes() -> None:
    work = Work(3, 3, 900, (Piece(0, 5, 0.0),))
    assert work.shape(5).num_sampled == 4
    assert work.shape(4).num_sampled == 3


def serve(rate: float, **targets: float) -> dict[str, dict[str, float]]:
    settings = Resolved(max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=MOST, **targets)  # type: ignore[arg-type]
    load = Synthetic((Kind(4096, 256, 0.5), Kind(128, 256, 0.5)), rate=rate, duration_s=25)
    record, _ = simulate(load, settings, make_layout(40_000, 16), lambda shape: StepTimes(0.0, seconds(shape)))
    gaps = sorted(record.gaps_s)
    return {**summarize(record), "itl_p99_s": percentile(gaps, 99)}  # type: ignore[dict-item]


def test_the_simulator_shows_the_target_held_at_full_throughput_and_no_loss_at_light_load() -> None:
    """Half of the requests long, half short, at 70 % of what a fixed budget could serve; and at 5 %."""
    fixed, held = serve(rate=9.0), serve(rate=9.0, target_itl_s=0.04)
    assert fixed["itl_p99_s"] > 0.06
    assert held["itl_p99_s"] <= 0.04
    assert held["output_tokens_per_s"] > 0.95 * fixed["output_tokens_per_s"]
    fixed, light = serve(rate=0.7), serve(rate=0.7, target_itl_s=0.04)
    assert light["ttft_s"]["mean"] < 1.03 * fixed["ttft_s"]["mean"]
    assert light["itl_p99_s"] <= 0.04
