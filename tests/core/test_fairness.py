"""Fair shares under saturation: what each tenant gets does not depend on how much the others ask for."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from octavo.config.resolved import Resolved
from octavo.core.fairness import Fair, guessed_service
from octavo.types import Request, SamplingParams
from tests.laws.drive import Engine
from tests.laws.fake import FakeModel, make_layout

STEPS = 400


def saturated(policy: str, demands: dict[str, tuple[int, int, int]], seed: int = 3) -> Counter[str]:
    """Service of each tenant after some hundred steps in which all had requests waiting. `demands`: (requests, prompt, output) of each."""
    settings = Resolved(
        max_model_len=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=24, enable_prefix_caching=False, scheduling_policy=policy,
        overlap_depth=1,
    )  # fmt: skip
    engine = Engine(settings, make_layout(64, 4), FakeModel(32), audit=False)
    draw, waiting = Random(seed), []
    for tenant, (count, prompt, output) in demands.items():
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        ids = (tuple(draw.randrange(1, 32) for _ in range(prompt)) for _ in range(count))
        waiting += [Request(f"{tenant}{number}", tokens, params, tenant=tenant) for number, tokens in enumerate(ids)]
    for request in waiting:  # the greediest tenant's all come first
        engine.add(request)
    for _ in range(STEPS):
        engine.step()
    left = {seq.request.tenant for seq in engine.scheduler.waiting}
    assert left == set(demands), "the load must saturate"
    service: Counter[str] = Counter()
    for request in waiting:
        made = len(engine.told[request.id, 0].tokens)
        if made:
            service[request.tenant or ""] += len(request.prompt_token_ids) + 2 * made
    return service


@pytest.mark.parametrize(
    "demands",
    [
        {"greedy": (400, 8, 8), "modest": (200, 8, 8)},
        {"greedy": (400, 8, 40), "modest": (400, 8, 4)},
        {"greedy": (400, 50, 4), "modest": (400, 4, 4)},
        {"greedy": (400, 20, 20), "modest": (400, 5, 5), "third": (400, 30, 2)},
    ],
    ids=["more requests", "longer answers", "longer prompts", "three"],
)
def test_tenants_that_all_wait_get_equal_service(demands: dict[str, tuple[int, int, int]]) -> None:
    service = saturated("fair", demands)
    assert min(service.values()) > 0.8 * max(service.values()), service
    unfair = saturated("fcfs", demands)
    assert unfair["modest"] < 0.3 * unfair["greedy"], "first come first served does not"


def test_who_was_away_saves_nothing_up() -> None:
    fair = Fair()
    one = Request("a", (1,) * 10, SamplingParams(max_tokens=5), tenant="here")
    orders = [fair.order(one, number, 0) for number in range(50)]
    fair._now = orders[40][0]
    newcomer = fair.order(Request("b", (1,), SamplingParams(max_tokens=5), tenant="away"), 50, 0)
    assert orders[40] < newcomer < orders[41]


def test_the_first_continuation_reads_the_prompt_for_all() -> None:
    request = Request("a", (1,) * 10, SamplingParams(max_tokens=5, n=2, temperature=1))
    assert guessed_service(request, 0) == guessed_service(request, 1) + 10


def test_tenants_that_are_gone_are_forgotten() -> None:
    fair = Fair()
    for number in range(5000):
        fair.order(Request("a", (1,), SamplingParams(max_tokens=1), tenant=f"t{number}"), number, 0)
        fair._now += 10
    assert len(fair._ends) <= 512
