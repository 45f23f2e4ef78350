"""Replicas as `LLM` drives them: the texts of one engine, answers of all together, and no silence after a death."""

from __future__ import annotations

import os
import signal

import pytest

from octavo.engine.client import EngineDead
from octavo.engine.messages import Abort, Add
from octavo.engine.offline import Collected, Replicas
from octavo.types import InvalidRequest
from tests.engine.fake_engine import DEADLY, request, text


@pytest.fixture
def started():
    outbox = Collected()
    replicas = Replicas("tests.engine.fake_engine:build", [(0,), (1,)], outbox)
    yield replicas, outbox
    replicas.close()


def finish(replicas: Replicas, outbox: Collected, num_requests: int) -> dict[str, list[int]]:
    texts: dict[str, list[int]] = {}
    while num_requests:
        replicas.step()
        for news in outbox.take():
            texts.setdefault(news.request_id, []).extend(news.token_ids)
            num_requests -= news.finish_reason is not None
    return texts


def test_texts_are_those_of_one_engine_and_answers_those_of_all(started):
    replicas, outbox = started
    assert replicas.info["number"] == 0
    requests = [request(f"r{k}", k + 1, 2, 3) for k in range(12)]
    replicas.handle([Add(one) for one in requests])
    assert finish(replicas, outbox, 12) == {one.id: text(one) for one in requests}
    stats = replicas.ask("stats")
    assert (stats["generation_tokens"], stats["num_requests_running"]) == (96, 0)
    assert len(replicas.ask("step_log")) >= stats["num_steps"] - 4
    assert replicas.ask("reset_prefix_cache") is True
    with pytest.raises(InvalidRequest, match="max_model_len - 1 = 63"):
        replicas.admit(request("long", *range(64)))


def test_an_abort_reaches_whom_it_concerns(started):
    replicas, _ = started
    replicas.handle([Add(request("a", 1, max_tokens=60)), Add(request("b", 2, max_tokens=60)), Abort("a"), Abort("b")])
    assert replicas.ask("stats")["num_requests_running"] == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_death_is_told_with_its_reason(started, killed):
    replicas, outbox = started
    if killed:
        os.kill(replicas._children[1].process.pid, signal.SIGKILL)
        said = "engine 1: its process ended with signal 9"
    else:
        replicas.handle([Add(request("deadly", DEADLY))])
        said = "engine 0: its process ended with code 7"
    with pytest.raises(EngineDead, match=said):
        finish(replicas, outbox, 1)
    assert all(child.process.poll() is not None for child in replicas._children)
