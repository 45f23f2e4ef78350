"""How long a first token takes by each estimate, against what then happens: on a machine of one rate, and in the simulator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.config.resolved import Resolved
from octavo.config.server import ServerConfig
from octavo.engine.client import EngineStats, together
from octavo.engine.costs import LearnedCosts
from octavo.plan.cost import NOT_MEASURED, CostModel, cost_model
from octavo.plan.devices import Device
from octavo.plan.memory import kv_layout
from octavo.plan.steps import StepLog
from octavo.serve.first_token import MeasuredRate, PredictedSteps
from octavo.serve.queue import Place, Queue
from octavo.simulate.replica import Replica
from octavo.types import Request, SamplingParams
from tests.plan.checkpoints import LLAMA3_8B

H200 = Device.named("h200")
LLAMA = Architecture.from_config(LLAMA3_8B)
LOOK_EVERY_S = 0.5


def reading(rate: float) -> EngineStats:
    return EngineStats(counters={"prompt_tokens_per_second": rate})


def served_in_order(estimate: MeasuredRate, lengths: list[int], arrivals: list[float], rate: float) -> list[tuple[float, float]]:
    """Prompts read one after another at `rate` tokens/s: what wait was expected before each, and how long it was."""
    ends: list[tuple[float, int]] = []  # of those that wait, in order
    free_s, told = 0.0, []
    for now_s, length in zip(arrivals, lengths):
        while ends and ends[0][0] <= now_s:
            end_s, read_tokens = ends.pop(0)
            estimate.changed(end_s, len(ends), read_tokens)
        expected = estimate.seconds(sum(tokens for _, tokens in ends), 0)
        assert expected is not None
        told.append((expected, max(0.0, free_s - now_s)))
        free_s = max(free_s, now_s) + length / rate
        ends.append((free_s, length))
        estimate.changed(now_s, len(ends))
    return told


@pytest.mark.parametrize("believed", [200.0, 1000.0, 5000.0], ids=["believed slower", "as believed", "believed faster"])
def test_under_load_the_estimate_is_what_then_happens(believed: float) -> None:
    """Whatever the cost model believed: in the end it is measured."""
    draw = random.Random(7)
    lengths = [draw.randint(20, 400) for _ in range(800)]
    now_s, arrivals = 0.0, []
    for _ in lengths:
        now_s += draw.expovariate(4.6)  # prompt tokens come nearly as fast as they are read
        arrivals.append(now_s)
    estimate = MeasuredRate()
    estimate.heard(reading(believed))
    told = served_in_order(estimate, lengths, arrivals, 1000.0)[400:]
    long = [(expected, took) for expected, took in told if took > 1.0]
    assert len(long) > 50
    # The prompt that is being read counts whole among the tokens ahead: up to 400 ms too much.
    assert all(0.8 * took <= expected <= 1.2 * took + 0.5 for expected, took in long)


def test_a_queue_that_stands_still_grows_longer_by_the_estimate() -> None:
    estimate = MeasuredRate()
    estimate.heard(reading(1000.0))
    estimate.changed(0.0, 1)
    waits = []
    for now_s in (0.1, 1.0, 5.0, 20.0):
        estimate.changed(now_s, 1)
        waits.append(estimate.seconds(100, 0))
    assert waits == sorted(waits)
    assert waits[-1] > 100 * waits[0]


def test_idle_time_teaches_nothing() -> None:
    estimate = MeasuredRate()
    estimate.heard(reading(1000.0))
    estimate.changed(0.0, 1)
    estimate.changed(1.0, 0, 500)
    before = estimate.seconds(100, 0)
    estimate.changed(1000.0, 1)
    assert estimate.seconds(100, 0) == before


def settings_of(**flags: object) -> Resolved:
    return resolve(EngineConfig.from_flags(**flags), LLAMA3_8B, H200)


class Served:
    """A front's queue before a simulated engine, which it asks now and then as a server does."""

    def __init__(self, settings: Resolved, costs: CostModel) -> None:
        self.costs = LearnedCosts(costs, StepLog())
        self.replica = Replica(settings, kv_layout(LLAMA, settings), costs.times)
        self.queue = Queue(ServerConfig(), lambda: self.replica.now_s, PredictedSteps())
        self.places: dict[str, Place] = {}
        self.told: list[tuple[float, float]] = []  # (expected, took)
        self.looked_s = -1.0

    def look(self) -> None:
        settings, now_s = self.replica.scheduler.settings, self.replica.now_s
        if now_s >= self.looked_s + LOOK_EVERY_S:
            self.looked_s = now_s
            counters = self.costs.expected(settings)
            self.queue.estimate.heard(EngineStats(prompt_steps=self.costs.prompt_steps(self.replica.scheduler), counters=counters))

    def run(self, arrivals: Sequence[tuple[float, int, int]]) -> list[tuple[float, float]]:
        """Of (when, prompt tokens, output tokens) in order of time: what was expected and what came, in order of first tokens."""
        coming = list(enumerate(arrivals))
        draw = random.Random(1)
        while coming or self.places:
            while coming and (coming[0][1][0] <= self.replica.now_s or not self.replica.busy):
                number, (at_s, num_prompt, num_output) = coming.pop(0)
                tokens = tuple(draw.randrange(1000) for _ in range(num_prompt))
                self.replica.receive(Request(str(number), tokens, SamplingParams(max_tokens=num_output, ignore_eos=True)), at_s)
                self.look()
                self.places[str(number)] = self.queue.joined(num_prompt)
            self.look()
            for news in self.replica.step():
                if news.token_ids and (place := self.places.pop(news.request_id, None)):
                    self.queue.left(place, read=True)
                    assert place.expected_s is not None
                    self.told.append((place.expected_s, self.replica.now_s - place.since_s))
        return self.told


def lengths(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(100, 900) for _ in range(count)]


def at_random(rate: float, count: int) -> list[tuple[float, int, int]]:
    draw, now_s, found = random.Random(2), 0.0, []
    for length in lengths(3, count):
        now_s += draw.expovariate(rate)
        found.append((now_s, length, 100))
    return found


BURST = [(0.0, length, 300) for length in lengths(1, 200)]
DECODES = [(0.0, 300, 3000)] * 200
AMONG_DECODES = DECODES + [(3.0, length, 200) for length in lengths(4, 80)]
LOADS = {"burst": BURST, "burst among decodes": AMONG_DECODES, "more than can be served": at_random(140, 300)}


@pytest.mark.parametrize("budget", [1024, 8192])
@pytest.mark.parametrize("load", LOADS)
def test_what_is_predicted_comes_within_a_tenth_and_a_step(load: str, budget: int) -> None:
    settings = settings_of(max_num_batched_tokens=budget)
    costs = cost_model(LLAMA, settings, H200)
    assert costs.measured
    served = Served(settings, costs)
    step_s = served.costs.longest_s(settings_of(max_num_batched_tokens=budget, max_num_seqs=1))
    told = served.run(LOADS[load])
    assert max(took for _, took in told) > 1.0
    assert all(abs(expected - took) <= 0.1 * took + step_s for expected, took in told)


def test_among_decodes_it_is_nearer_than_what_is_measured() -> None:
    settings = settings_of(max_num_batched_tokens=1024)
    costs = cost_model(LLAMA, settings, H200)
    errors = []
    for one in (costs, replace(costs, origin=NOT_MEASURED)):
        told = Served(settings, one).run(AMONG_DECODES)
        errors.append(sum(abs(expected - took) for expected, took in told[-40:]))
    assert errors[0] < errors[1] / 2


STEPS = {
    "tokens": 1000, "full_s": 0.5, "least_s": 0.1, "pairs_per_s": 1e12, "context_per_s": 1e12, "rows": 10, "cache_tokens": 90_000,
}  # fmt: skip


def test_the_queue_goes_by_the_model_where_there_are_costs_and_by_the_measured_rate_where_there_are_none() -> None:
    queue = Queue(ServerConfig(), lambda: 0.0)
    assert queue.wait_s(500) is None
    queue.estimate.heard(reading(100.0))
    assert queue.wait_s(500) == 5.0
    queue.estimate.heard(replace(reading(100.0), prompt_steps=STEPS))
    assert queue.wait_s(500) == pytest.approx(0.1 + 0.4 * 500 / 1000)
    assert queue.wait_s(2000) == pytest.approx(2 * 0.5, rel=1e-4)
    queue.estimate.heard(reading(100.0))
    assert queue.wait_s(500) == 5.0


def test_what_lacks_a_row_or_memory_takes_no_less_than_measured() -> None:
    estimate, measured = PredictedSteps(), MeasuredRate()
    stats = replace(reading(100.0), prompt_steps=STEPS)
    for one in (estimate, measured):
        one.heard(stats)
        one.changed(0.0, 9)
    expected_s = measured.seconds(900, 100)
    assert expected_s is not None
    assert (estimate.seconds(900, 100) or 0.0) < expected_s / 10
    assert estimate.seconds(90_000, 100) == measured.seconds(90_000, 100)
    for one in (estimate, measured):
        one.changed(0.0, 10)
    assert estimate.seconds(900, 100) == measured.seconds(900, 100)


def test_tokens_that_the_prefix_cache_has_are_not_read() -> None:
    estimate = PredictedSteps()
    estimate.heard(EngineStats(prompt_steps=STEPS, prefix_cache_queries=4000, prefix_cache_hits=3000))
    assert estimate.seconds(0, 4000) == pytest.approx(0.5, rel=1e-4)
    estimate.heard(EngineStats(prompt_steps=STEPS, prefix_cache_queries=400_000, prefix_cache_hits=3000))
    assert estimate.seconds(0, 4000) == pytest.approx(2.0, rel=0.05), "what was found long ago says little"


def test_two_engines_read_twice_as_much() -> None:
    estimate = PredictedSteps()
    estimate.heard(together([EngineStats(prompt_steps=STEPS)] * 2))
    assert estimate.seconds(0, 4000) == pytest.approx(1.0, rel=1e-4)
