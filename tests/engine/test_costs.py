"""The engine learns what its steps cost where nobody has measured it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.core.plan import StepShape
from octavo.engine.costs import FIRST, LearnedCosts
from octavo.plan.cost import COMMON, CostModel, Terms
from octavo.plan.devices import Device
from octavo.plan.steps import StepLog
from tests.plan.checkpoints import QWEN3_06B


@pytest.fixture
def first() -> CostModel:
    device = Device.named("a10g")
    return CostModel.of(Architecture.from_config(QWEN3_06B), resolve(EngineConfig.from_flags(), QWEN3_06B, device), device)


def shapes(count: int) -> list[StepShape]:
    draw = Random(5)
    found = []
    for _ in range(count):
        chunk, decodes = draw.choice([0, 0, 50, 900]), draw.randint(1, 40)
        found.append(StepShape(chunk + decodes, decodes + 1, decodes + 1, chunk, chunk * (chunk + 1) // 2, decodes * 300))
    return found


@pytest.mark.parametrize("measured", [False, True])
def test_it_learns_from_its_own_steps_unless_it_knows(first: CostModel, measured: bool) -> None:
    truth = replace(first, coefficients=Terms(*(3 * c for c in COMMON)))
    log = StepLog()
    costs = LearnedCosts(replace(first, origin="measured before") if measured else first, log)
    now_s = 0.0
    for number, shape in enumerate(shapes(FIRST + 5)):
        log.begin(now_s)
        launched = log.launched(now_s)
        now_s += truth.device_s(shape)
        log.end(shape, launched, now_s)
        learnt = costs.model.device_s(shape) == pytest.approx(truth.device_s(shape), rel=0.1) if costs(shape) else None
        assert learnt == (number + 1 >= FIRST and not measured)
    assert (costs.model.coefficients == COMMON) == measured
