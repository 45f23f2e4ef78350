"""The engine learns what its steps cost where nobody has measured it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from octavo.bench.cost import Subject
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.core.kv.cache import KVCache
from octavo.core.plan import StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.costs import FIRST, LearnedCosts
from octavo.engine.link import stats_from
from octavo.plan.cost import COMMON, NOT_MEASURED, CostModel, Terms
from octavo.plan.devices import Device
from octavo.plan.memory import kv_layout
from octavo.plan.steps import StepLog
from tests.bench.timed import Machine
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


def test_steps_that_took_longer_than_foreseen_make_it_cautious(first: CostModel) -> None:
    costs = LearnedCosts(replace(first, origin="measured before"), StepLog())
    shape = StepShape(420, 21, 21, 400, 80_200, 6000)
    foreseen_s = costs(shape)
    decode, small = StepShape(20, 20, 20, 0, 0, 6000), StepShape(30, 21, 21, 10, 55, 6000)
    for number in range(200):
        late = 1.3 if number % 10 == 0 else 1.1  # one in ten
        costs.saw(shape, late * foreseen_s, 1.2 * foreseen_s)
        costs.saw(shape, 5 * foreseen_s, 0.0)  # there is no target
        costs.saw(shape, 5 * foreseen_s, 0.9 * foreseen_s)  # it was not within the target to begin with
        costs.saw(decode, 1.0, foreseen_s)
        costs.saw(small, 1.0, 10.0)
    assert costs(shape) == pytest.approx(0.9 * 1.3 * foreseen_s)
    for _ in range(300):
        costs.saw(shape, 1.05 * foreseen_s, 1.2 * foreseen_s)
    assert costs(shape) == foreseen_s, "a tenth is left free in any case"


@pytest.mark.parametrize(
    ("origin", "flags", "tells"),
    [
        ("known", {}, True), (NOT_MEASURED, {}, False), ("known", {"target_itl_ms": 40.0}, False),
        ("known", {"enable_chunked_prefill": False}, False),
    ],
)  # fmt: skip
def test_an_engine_tells_of_steps_to_come_what_it_knows(origin: str, flags: dict[str, object], tells: bool) -> None:
    """Nothing before it has measured any, and nothing where steps are not just filled up."""
    device, arch = Device.named("h200"), Architecture.from_config(QWEN3_06B)
    settings = resolve(EngineConfig.from_flags(**flags), QWEN3_06B, device)
    model = replace(CostModel.of(arch, settings, device), origin=origin)
    steps = LearnedCosts(model, StepLog()).prompt_steps(Scheduler(settings, KVCache(kv_layout(arch, settings), True)))
    assert bool(steps) == tells
    if tells:
        assert (steps["tokens"], steps["rows"]) == (settings.max_num_batched_tokens, settings.max_num_seqs)
        assert 0 < steps["least_s"] < steps["full_s"]


def test_a_front_is_told_with_the_rest() -> None:
    device = Device.named("h200")
    arch = Architecture.from_config(QWEN3_06B)
    settings = resolve(EngineConfig.from_flags(), QWEN3_06B, device)
    machine = Machine(Subject(arch, settings, device))
    loop, _ = machine.inside
    assert loop.costs is not None
    assert stats_from(loop.stats()).prompt_steps == loop.costs.prompt_steps(loop.scheduler) != {}
