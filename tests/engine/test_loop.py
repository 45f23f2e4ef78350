"""The loop over the real scheduler and the laws' fake executor: texts are those of plain recursion, failures stay where they belong."""

from __future__ import annotations

import itertools
from threading import Event

import pytest

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.scheduler import Scheduler
from octavo.engine.drive import drive
from octavo.engine.executor import OrderFailed
from octavo.engine.grammars import Grammars, no_vocabulary
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Abort, Add, Ask, Finish, Stop
from octavo.grammar.library import GrammarError
from octavo.types import FinishReason, Request, SamplingParams, StructuredOutputs
from tests.laws.fake import FakeExecutor, FakeModel, make_layout


class Outbox:
    def __init__(self):
        self.tokens, self.finished, self.answers = {}, {}, {}

    def send(self, outputs):
        for output in outputs:
            assert output.request_id not in self.finished
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                self.finished[output.request_id] = (output.finish_reason, output.stop_reason)

    def answer(self, ask, value):
        self.answers[ask.id] = value


MODEL = FakeModel()


def make_loop(depth: int, failing=(), num_blocks: int = 64, vocabulary=no_vocabulary, ahead=()):
    settings = Resolved(max_model_len=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, overlap_depth=depth)
    layout = make_layout(num_blocks, 4)
    executor = FakeExecutor(layout, settings.max_num_seqs, MODEL, failing=failing)
    outbox = Outbox()
    clock = itertools.count().__next__
    grammars = Grammars(vocabulary, lambda: 0.0)
    scheduler = Scheduler(settings, KVCache(layout), (grammars.preparation,))
    return EngineLoop(scheduler, executor, outbox, lambda: float(clock()), depth, grammars=grammars, ahead=ahead), outbox


def request(name: str, length: int, max_tokens: int = 8) -> Request:
    return Request(name, tuple(range(1, length + 1)), SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=5))


def run(loop: EngineLoop) -> None:
    for _ in range(1000):
        if not loop.busy:
            return
        loop.step()
    raise AssertionError("the loop does not come to rest")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_texts_are_those_of_plain_recursion(depth):
    loop, outbox = make_loop(depth)
    requests = [request(f"r{k}", 3 + 5 * k) for k in range(7)]
    loop.handle([Add(one) for one in requests])
    run(loop)
    for one in requests:
        assert outbox.tokens[one.id] == MODEL.continuation(one.prompt_token_ids, 8, 5)
        assert outbox.finished[one.id] == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_failed_step_ends_its_own_sequences_only(depth):
    loop, outbox = make_loop(depth, failing=[3])
    loop.handle([Add(request("a", 3))])
    run(loop)
    loop.handle([Add(request("b", 3))])
    run(loop)
    assert outbox.finished["a"][0] is FinishReason.ERROR
    assert outbox.finished["a"][1].startswith("RuntimeError: ")
    assert outbox.tokens["b"] == MODEL.continuation((1, 2, 3), 8, 5)
    loop.handle([Ask("q", "stats")])
    assert outbox.answers["q"]["failed_steps"] == 1
    assert outbox.answers["q"]["kv_cache_usage"] == 0


def test_what_can_never_run_is_refused_with_news():
    loop, outbox = make_loop(1)
    loop.handle([Add(request("long", 64)), Add(request("good", 4))])
    run(loop)
    reason, text = outbox.finished["long"]
    assert reason is FinishReason.ERROR
    assert "64" in text
    assert outbox.finished["good"][0] is FinishReason.LENGTH


def test_finish_and_abort_free_everything():
    loop, outbox = make_loop(1)
    loop.handle([Add(request("a", 5, 40)), Add(request("b", 6, 40))])
    for _ in range(6):
        loop.step()
    loop.handle([Finish("a", 0, FinishReason.STOP, 2), Abort("b")])
    run(loop)
    assert not outbox.finished
    assert loop.stats()["kv_cache_usage"] == 0
    loop.handle([Ask("reset", "reset_prefix_cache")])
    assert outbox.answers["reset"] is True


def test_an_abort_while_a_constraint_is_compiled_leaves_nothing():
    compiling, may_end = Event(), Event()

    def vocabulary():
        compiling.set()
        may_end.wait()
        raise GrammarError("asked for after all")

    loop, outbox = make_loop(1, vocabulary=vocabulary)
    constraint = SamplingParams(max_tokens=8, n=2, structured_outputs=StructuredOutputs(regex="a*"))
    loop.handle([Add(Request(name, (1, 2, 3), constraint)) for name in ("compiled", "next")] + [Add(request("plain", 4))])
    compiling.wait()
    while "plain" not in outbox.finished:
        loop.step()
    loop.handle([Abort("compiled"), Abort("next")])
    assert not loop.busy
    assert not loop.grammars.active
    assert not loop.grammars.preparation.pending
    may_end.set()
    loop.handle([Add(request("later", 4))])
    run(loop)
    assert set(outbox.finished) == {"plain", "later"}
    assert loop.stats()["kv_cache_usage"] == 0
    loop.grammars.close()


@pytest.mark.parametrize(("drain", "finished"), [(True, {"a"}), (False, set())])
def test_stop(drain, finished):
    loop, outbox = make_loop(1)
    loop.handle([Add(request("a", 5)), Stop(drain)])
    run(loop)
    assert loop.stopping
    assert set(outbox.finished) == finished


def test_sizes_of_steps_are_counted():
    loop, _ = make_loop(1)
    loop.handle([Add(request("a", 20, max_tokens=4)), Add(request("b", 3, max_tokens=4))])
    run(loop)
    stats = loop.stats()
    found = {name: dict(counts) for name, counts in stats["histograms"].items()}
    for counts in found.values():
        assert sum(counts.values()) == stats["num_steps"]
    assert found["iteration_tokens_total"][16.0] >= 1, "a step full of prompt tokens"
    assert found["batch_size"][2.0] >= 1, "a step of both"


def test_preemption_is_told_with_counts_and_flags_that_help(caplog):
    """Twice as many are needed for a further line, so that the log stays readable."""
    loop, _ = make_loop(1, num_blocks=16)
    loop.handle([Add(request(f"r{k}", 20, 30)) for k in range(4)])
    run(loop)
    lines = [record.getMessage() for record in caplog.records if "preempted" in record.getMessage()]
    count = loop.scheduler.num_preemptions
    assert count >= 2
    assert 1 <= len(lines) <= count.bit_length()
    assert lines[0].startswith("1 times")
    assert all(flag in lines[0] for flag in ("--kv-cache-memory-bytes", "--max-num-seqs", "OCTAVO_CPU_KVCACHE_SPACE"))


def test_orders_that_save_time_are_given_one_by_one_while_nothing_else_is_to_do(monkeypatch):
    loop, _ = make_loop(1, ahead=[("record_pass", 32, 4), ("record_pass", 64, 4), ("unknown",), ("record_pass", 128, 4)])
    given = []

    def order(name, *args):
        if name == "unknown":
            raise OrderFailed("it is not known")
        given.append(args)

    monkeypatch.setattr(loop.executor, "order", order, raising=False)
    loop.ahead.give_next()
    assert (given, loop.ahead.left) == ([(32, 4)], True)
    for _ in range(3):
        loop.ahead.give_next()
    assert (given, loop.ahead.left) == ([(32, 4), (64, 4)], False), "what failed once is not tried on"


def test_a_driven_loop_blocks_only_when_it_has_prepared_all():
    loop, _ = make_loop(1, ahead=[("record_pass", 32, 4)] * 2)
    given, waits = [], []
    loop.executor.order = lambda name, *args: given.append(args)
    loop.executor.check = loop.executor.close = lambda: None

    def receive(wait):
        waits.append(wait)
        return [Stop(drain=True)] if wait else []

    drive(loop, receive)
    assert (len(given), waits) == (2, [False, False, True])
