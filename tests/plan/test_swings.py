"""What sizes take beyond the terms, and how far steps swing: found in times that are known, and drawn again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from octavo.core.plan import StepShape
from octavo.plan.cost import CostModel, Recorded
from octavo.plan.fit import fit, judge
from octavo.plan.swings import QUANTILES, Swinging, Warmth
from octavo.plan.timing import Timing
from tests.plan.test_cost import TRUTH, costs, decode, prefill

EXTRA_S = {(Recorded.WHOLE, 48): 4e-4, (Recorded.WHOLE, 80): -3e-4, (Recorded.PASS, 640): 1e-3}


def played(truth: CostModel, swing: float, late: float = 1.0) -> list[Timing]:
    """Decodes and prompts of many sizes; times differ by up to `swing`, and one launch in a hundred takes `late` times as long."""
    source = Random(5)
    shapes = [decode(count, 300 + 10 * turn) for count in range(8, 129, 8) for turn in range(30)]
    shapes += [prefill(size + turn) for size in range(100, 3000, 60) for turn in range(12)]
    return [
        Timing.exact(shape, times.device_s * source.uniform(1 - swing, 1 + swing), times.launch_s * (late if number % 100 == 0 else 1.0))
        for number, shape in enumerate(shapes)
        for times in [truth.times(shape)]
    ]


@pytest.fixture
def truth() -> CostModel:
    return replace(costs(), coefficients=TRUTH, extra_s=EXTRA_S)


def test_what_a_size_takes_beyond_the_terms_is_found(truth: CostModel) -> None:
    seen = played(truth, swing=0.02)
    found = fit(costs(), seen)
    for shape in (decode(48, 400), decode(80, 400), prefill(600), decode(64, 400)):
        assert found.device_s(shape) == pytest.approx(truth.device_s(shape), rel=0.02)
    assert judge(found, seen)["p90"] < 0.03 < judge(replace(found, extra_s={}), seen)["p90"]
    assert all(kind is not Recorded.NOTHING for kind, _ in found.extra_s), "what is not recorded has no size of its own"


def test_few_steps_of_a_size_say_nothing_of_it(truth: CostModel) -> None:
    seen = [one for one in played(truth, swing=0.0) if not 32 < one.shape.num_tokens <= 48]  # padded to it
    slow = Timing.exact(decode(48, 400), 2 * truth.device_s(decode(48, 400)))
    assert (Recorded.WHOLE, 48) not in fit(costs(), [*seen, slow, slow, slow]).extra_s


def test_a_step_without_an_end_that_was_seen_counts_as_foreseen(truth: CostModel) -> None:
    hidden = [one._replace(least_s=0.0, seconds=3 * one.seconds) for one in played(truth, swing=0.2)]
    exact = played(truth, swing=0.0)
    ratios = fit(costs(), exact + hidden).swings[Recorded.WHOLE].device
    assert max(ratios) < 1.05


def test_times_swing_as_they_were_measured(truth: CostModel) -> None:
    model = fit(costs(), played(truth, swing=0.1, late=50.0))
    assert {len(part) for swing in model.swings.values() for part in swing[:2]} == {QUANTILES}
    shape = decode(64, 400)
    foreseen = model.times(shape)
    times = [Swinging(model, seed=3)] * 4000
    drawn = sorted(one(shape).device_s / foreseen.device_s for one in times)
    assert drawn[0] > 0.88
    assert drawn[40] == pytest.approx(0.9, abs=0.02)
    assert drawn[2000] == pytest.approx(1.0, abs=0.02)
    assert drawn[-40] == pytest.approx(1.1, abs=0.02)
    assert max(one(shape).launch_s for one in times) < 2 * foreseen.launch_s, "what happens once in a hundred steps is left out"
    first, second = Swinging(model, seed=3), Swinging(model, seed=3)
    assert [first(shape) for _ in range(9)] == [second(shape) for _ in range(9)]
    assert Swinging(costs())(shape) == costs().times(shape), "nothing swings that was not measured"


def test_steps_among_many_prompts_take_longer_than_the_same_among_few(truth: CostModel) -> None:
    """A clock that products take down, by a tenth where they are all that is done."""
    warmth, seen = Warmth(truth), list[Timing]()
    for busy in (1, 4, 16) * 6:  # steps between prompts
        for number in range(60):
            shape = decode(64, 400) if number % busy else prefill(1000)
            seen.append(Timing.exact(shape, truth.device_s(shape) * (1 + 0.1 * warmth.share)))
            warmth.ran(shape, truth.device_s(shape))
    model = fit(costs(), seen)
    assert model.swings[Recorded.PASS].warm == pytest.approx(0.1, rel=0.2)
    cold, warm = Swinging(model), Swinging(model)
    for _ in range(20):
        warm(prefill(1000))
    ratio = warm(prefill(1000)).device_s / cold(prefill(1000)).device_s
    assert ratio == pytest.approx(1.08, abs=0.02)
    for _ in range(100):
        warm(decode(64, 400))
    assert warm(prefill(1000)).device_s == pytest.approx(cold(prefill(1000)).device_s, rel=0.09)


def test_a_host_that_is_the_device_has_one_time(truth: CostModel) -> None:
    model = fit(costs(), played(truth, swing=0.1))
    host = replace(model, roofline=replace(model.roofline, on_host=True))
    launch_s, device_s = Swinging(host)(StepShape(4, 4, 4, 0, 0, 400))
    assert launch_s == device_s
