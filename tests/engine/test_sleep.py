"""An engine takes no requests while it sleeps, and lets those that run end before it does."""

import pytest

from octavo.engine.executor import OrderFailed
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Add, Ask
from octavo.types import FinishReason
from tests.engine.test_loop import Outbox, make_loop, request, run


class Orders:
    """What the executor was told; fails as often as `failures` says."""

    def __init__(self, failures=0):
        self.given, self.failures = [], failures

    def __call__(self, name, *args):
        self.given.append((name, *args))
        if self.failures:
            self.failures -= 1
            raise OrderFailed("MemoryError: no room")


def make(failures: int = 0) -> tuple[EngineLoop, Outbox, Orders]:
    loop, outbox = make_loop(1)
    orders = loop.executor.order = Orders(failures)
    return loop, outbox, orders


def test_requests_that_run_may_end_first():
    loop, outbox, orders = make()
    loop.handle([Add(request("first", 6))])
    loop.step()
    assert loop.ask("sleep", 1) == ["busy"]
    assert loop.ask("pause", "wait") == ["busy"]
    loop.handle([Add(request("second", 6))])
    reason, told = outbox.finished["second"]
    assert reason is FinishReason.ERROR
    assert told.startswith("the engine is asleep")
    run(loop)
    assert outbox.finished["first"][0] is FinishReason.LENGTH
    loop.handle([Ask("p", "pause", ("wait",)), Ask("s", "sleep", (2,))])
    assert outbox.answers == {"p": [], "s": []}
    assert orders.given == [("sleep", 2)]
    assert loop.stats()["sleep_level"] == 2


def test_requests_that_run_may_be_ended():
    loop, outbox, orders = make()
    loop.handle([Add(request(f"r{number}", 6)) for number in range(6)])
    loop.step()
    assert loop.ask("pause", "abort") == []
    assert {reason for reason, _ in outbox.finished.values()} == {FinishReason.ABORT}
    assert len(outbox.finished) == 6
    assert loop.ask("sleep", 1) == []
    assert not loop.flight
    assert loop.ask("wake") == []
    loop.handle([Add(request("again", 6))])
    run(loop)
    assert outbox.finished["again"][0] is FinishReason.LENGTH
    assert orders.given == [("sleep", 1), ("wake", ["weights", "kv_cache"])]


def test_it_wakes_part_by_part():
    loop, _, _ = make()
    loop.ask("sleep", 2)
    assert loop.ask("wake", ["kv_cache"]) == ["tags = 'kv_cache' is not possible: wake the weights first, or both"]
    assert "use weights or kv_cache" in loop.ask("wake", ["graphs"])[0]
    assert loop.ask("wake", ["weights"]) == []
    assert loop.stats()["sleep_level"] == 2
    assert loop.ask("wake", ["kv_cache"]) == []
    assert loop.stats()["sleep_level"] == 0


@pytest.mark.parametrize("part", ["sleep", "wake"])
def test_what_failed_is_told_and_can_be_asked_again(part):
    loop, outbox, orders = make()
    if part == "wake":
        loop.ask("sleep", 1)
    orders.failures = 1
    args = (1,) if part == "sleep" else ()
    assert "MemoryError: no room" in loop.ask(part, *args)[0]
    loop.handle([Add(request("early", 6))])
    assert outbox.finished["early"][0] is FinishReason.ERROR
    assert loop.ask(part, *args) == []
    assert loop.ask("wake") == []
    loop.handle([Add(request("late", 6))])
    run(loop)
    assert outbox.finished["late"][0] is FinishReason.LENGTH
