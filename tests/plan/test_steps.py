"""The log of steps: what each was, and how long it took, on a clock that only the test moves."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.plan import StepOutput, StepShape
from octavo.core.scheduler import Scheduler
from octavo.engine.channel import decode_reply, encode_answer
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Abort, Add, Ask
from octavo.plan.steps import StepLog
from octavo.plan.timing import Timing
from octavo.types import Request, SamplingParams
from tests.laws.fake import make_layout


@dataclass
class Machine:
    """Clock and device in one: a step ends `step_s` after the one before it, and no earlier than `step_s` after it was submitted."""

    step_s: float = 0.5
    now_s: float = 0.0
    free_s: float = 0.0
    failing: set[int] = field(default_factory=set)
    ends_s: deque[float] = field(default_factory=deque)

    def clock(self) -> float:
        return self.now_s

    def submit(self, plan):
        self.free_s = max(self.free_s, self.now_s) + self.step_s
        ends_s, output = self.free_s, StepOutput(plan.step, [[1] if piece.sample else [] for piece in plan.slices])
        machine = self

        class Step:
            def result(self):
                machine.now_s = max(machine.now_s, ends_s)
                if plan.step in machine.failing:
                    raise RuntimeError("failed")
                return output

        return Step()


class Outbox:
    """Costs the host something."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.answers = machine, {}

    def send(self, outputs) -> None:
        self.machine.now_s += 0.125

    def answer(self, ask, value) -> None:
        self.answers[ask.id] = value


def make(depth: int, **machine):
    engine = Machine(**machine)
    settings = Resolved(max_model_len=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, overlap_depth=depth)
    outbox = Outbox(engine)
    return EngineLoop(Scheduler(settings, KVCache(make_layout(64, 4))), engine, outbox, engine.clock, depth), engine, outbox


def request(name: str, length: int = 20, max_tokens: int = 4) -> Request:
    return Request(name, (1,) * length, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def run(loop: EngineLoop) -> None:
    while loop.busy:
        loop.step()


def test_shapes_are_those_of_the_steps():
    loop, _, _ = make(0)
    loop.handle([Add(request("a"))])
    run(loop)
    shapes = [timing.shape for timing in loop.step_log.timings()]
    assert shapes == [
        StepShape(16, 1, 0, 16, 16 * 17 // 2, 0), StepShape(4, 1, 1, 4, sum(range(17, 21)), 0),
        *(StepShape(1, 1, 1, 0, 0, context) for context in (21, 22, 23)),
    ]  # fmt: skip


@pytest.mark.parametrize(("depth", "seconds"), [(0, 0.625), (1, 0.5)])
def test_a_busy_engine_s_step_lasts_from_end_to_end(depth: int, seconds: float):
    """At depth 0 the host's time comes on top; at depth 1 it is hidden."""
    loop, _, _ = make(depth)
    loop.handle([Add(request("a"))])
    run(loop)
    times = [timing.seconds for timing in loop.step_log.timings()]
    assert times[0] == 0.5
    assert times[1:5] == [seconds] * 4


DECODE, MIXED = StepShape(1, 1, 1, 0, 0, 9), StepShape(9, 2, 2, 8, 36, 9)


def test_a_launch_is_charged_to_the_step_that_is_launched():
    """The host launches a mixed step for 20 ms, while the decode step before it ends after 5 and is seen to end after 20."""
    log = StepLog()
    log.begin(0.0)
    first = log.launched(0.001)
    log.begin(0.001)
    second = log.launched(0.002)
    log.end(DECODE, first, 0.005)  # waited for
    log.begin(0.005)
    mixed = log.launched(0.025)
    log.end(DECODE, second, 0.025)  # late: it ended between 0.005 and now
    log.begin(0.025)
    last = log.launched(0.026)
    log.end(MIXED, mixed, 0.060)
    log.end(DECODE, last, 0.065)
    one, two, three, four = log.timings()
    assert [timing.launch_s for timing in (one, two, three, four)] == pytest.approx([0.001, 0.001, 0.020, 0.001])
    assert (one.least_s, one.seconds) == (0.005, 0.005)
    assert (two.least_s, two.seconds) == pytest.approx((0.0, 0.020))
    assert (three.least_s, three.seconds) == pytest.approx((0.035, 0.055))  # it began when the decode ended, at 0.005 to 0.025
    assert (four.least_s, four.seconds) == pytest.approx((0.005, 0.005))


def test_reading_a_result_takes_longer_after_a_long_launch():
    """A decode of 5 ms had ended long before its result was read, 0.4 ms after the 20 ms that it took to launch the next step."""
    log = StepLog()
    log.begin(0.0)
    first = log.launched(0.001)
    log.begin(0.001)
    second = log.launched(0.021)
    log.end(DECODE, first, 0.0214)
    log.begin(0.0214)
    log.launched(0.0216)
    log.end(MIXED, second, 0.030)
    one, two = log.timings()
    assert (one.least_s, one.seconds) == pytest.approx((0.0, 0.0214))
    assert (two.least_s, two.seconds) == pytest.approx((0.030 - 0.0214, 0.029))


def test_a_device_that_waits_for_a_launch_shows_no_time_of_its_own():
    log = StepLog()
    log.begin(0.0)
    log.end(MIXED, log.launched(0.020), 0.0205)
    (only,) = log.timings()
    assert (only.least_s, only.seconds, only.launch_s) == pytest.approx((0.0, 0.0205, 0.020))


@pytest.mark.parametrize("depth", [0, 1])
def test_a_rest_is_no_step_s_time(depth: int):
    loop, machine, _ = make(depth)
    loop.handle([Add(request("a", 4, 1))])
    run(loop)
    machine.now_s += 100
    loop.handle([Add(request("b", 4, 40))])
    loop.step()
    loop.handle([Abort("b")])
    run(loop)
    machine.now_s += 100
    loop.handle([Add(request("c", 4, 2))])
    run(loop)
    assert max(timing.seconds for timing in loop.step_log.timings()) < 1


def test_a_failed_step_is_not_logged():
    loop, _, _ = make(0, failing={2})
    loop.handle([Add(request("a")), Add(request("b", 4))])
    run(loop)
    assert len(loop.step_log.timings()) == loop.stats()["num_steps"] - 1


def test_the_log_is_bounded_and_keeps_the_newest():
    log = StepLog(3)
    log.begin(0.0)
    for k in range(5):
        log.end(StepShape(k, 1, 1, 0, 0, 0), log.launched(k + 0.25), float(k + 1))
    assert [timing.shape.num_tokens for timing in log.timings()] == [2, 3, 4]


def test_a_front_may_ask_for_it():
    loop, _, outbox = make(0)
    loop.handle([Add(request("a"))])
    run(loop)
    loop.handle([Ask("q", "step_log")])
    kind, (ask_id, value) = decode_reply(encode_answer("q", outbox.answers["q"]))
    assert (kind, ask_id) == ("answer", "q")
    assert [Timing(StepShape(*shape), *seconds) for shape, *seconds in value] == loop.step_log.timings()


def test_a_sample_is_spread_over_what_is_kept_and_has_the_newest() -> None:
    log = StepLog(kept=100)
    for number in range(1, 251):
        log.begin(0.0)
        log.end(StepShape(number, 1, 1, 0, 0, 0), log.launched(float(number - 1)), float(number))
    sizes = [timing.shape.num_tokens for timing in log.timings(10)]
    assert sizes == list(range(160, 251, 10))
    assert [timing.seconds for timing in log.timings(3)] == [1.0] * 3
