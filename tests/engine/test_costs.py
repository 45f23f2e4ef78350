"""The engine learns what its steps cost where nobody has measured it."""

from __future__ import annotations

from random import Random

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.core.plan import StepShape
from octavo.engine.costs import FIRST, LearnedCosts
from octavo.engine.steps import StepLog
from octavo.plan.cost import COMMON, CostModel, Roofline, Terms
from octavo.plan.devices import Device
from tests.plan.checkpoints import QWEN3_06B


@pytest.fixture
def roofline() -> Roofline:
    device = Device.named("a10g")
    return Roofline.of(Architecture.from_config(QWEN3_06B), resolve(EngineConfig.from_flags(), QWEN3_06B, device), device)


def shapes(count: int) -> list[StepShape]:
    draw = Random(5)
    found = []
    for _ in range(count):
        chunk, decodes = draw.choice([0, 0, 50, 900]), draw.randint(1, 40)
        found.append(StepShape(chunk + decodes, decodes + 1, decodes + 1, chunk, chunk * (chunk + 1) // 2, decodes * 300))
    return found


@pytest.mark.parametrize("measured", [False, True])
def test_it_learns_from_its_own_steps_unless_it_knows(roofline: Roofline, measured: bool) -> None:
    truth = CostModel(roofline, Terms(*(3 * c for c in COMMON)))
    log = StepLog()
    costs = LearnedCosts(CostModel(roofline, COMMON, "measured before") if measured else CostModel(roofline), log)
    now_s = 0.0
    for number, shape in enumerate(shapes(FIRST + 5)):
        log.begin(now_s)
        now_s += truth.seconds(shape)
        log.end(shape, now_s)
        learnt = costs(shape) == pytest.approx(truth.seconds(shape), rel=0.1)
        assert learnt == (number + 1 >= FIRST and not measured)
    assert (costs.model.coefficients == COMMON) == measured
