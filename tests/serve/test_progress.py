"""Whether the engine gets on, told apart from whether it lives: slow is not stuck, idle is healthy, clocks may jump."""

import asyncio
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.client import EngineStats
from octavo.serve.progress import MOST_COUNTED_S, Progress
from tests.scripted_engine import Script
from tests.serve.serving import client, served
from tests.serve.test_launch import eventually

LIMIT_S = 10.0


def looks(progress: Progress, seconds: float, *, busy: bool = True, from_s: float = 0.0) -> float:
    """Look twice a second for so long; the time then."""
    for half in range(1, int(2 * seconds) + 1):
        progress.look(from_s + half / 2, busy=busy, in_step=True)
    return from_s + seconds


def test_work_that_waits_without_a_step_is_a_stall_after_the_limit_and_not_before() -> None:
    progress = Progress(LIMIT_S)
    now_s = looks(progress, LIMIT_S)
    assert progress.stalled is None
    looks(progress, 1.0, from_s=now_s)
    assert "no step of the engine has ended for 10.5 s" in (progress.stalled or "")
    assert "in the middle" in (progress.stalled or "")
    progress.heard(EngineStats(num_steps=1))
    assert progress.stalled is None


def test_an_engine_with_nothing_to_do_is_healthy() -> None:
    progress = Progress(LIMIT_S)
    looks(progress, 100.0, busy=False)
    assert progress.stalled is None


def test_a_slow_step_is_not_a_dead_one() -> None:
    """The engine says how long its longest step may take."""
    progress = Progress(LIMIT_S)
    progress.heard(EngineStats(num_steps=1, counters={"longest_step_seconds": 20.0}))
    now_s = looks(progress, 59.0)
    assert progress.stalled is None
    looks(progress, 2.0, from_s=now_s)
    assert progress.stalled is not None


def test_one_that_answers_but_ends_no_step_is_stalled_too() -> None:
    progress = Progress(LIMIT_S)
    progress.heard(EngineStats(num_steps=7))
    for half in range(30):
        progress.look(half / 2, busy=True, in_step=False)
        progress.heard(EngineStats(num_steps=7))
    assert "begins none" in (progress.stalled or "")


@given(jumps=st.lists(st.floats(MOST_COUNTED_S, 1e7), max_size=4))
def test_time_in_which_the_front_itself_was_held_up_does_not_count(jumps: list[float]) -> None:
    progress, now_s = Progress(LIMIT_S), 0.0
    progress.look(now_s, busy=True, in_step=True)
    for jump_s in jumps:
        now_s += jump_s
        progress.look(now_s, busy=True, in_step=True)
    assert progress.stalled is None


async def test_the_routes_tell_live_ready_and_progress_apart() -> None:
    async with client() as api:
        assert (await api.http.get("/health/progress")).json()["status"] == "idle"
        running = asyncio.ensure_future(api.post("/v1/completions", {"prompt": "a"}))
        api.engine.stuck = True
        await asyncio.sleep(0.05)
        looks(api.front.progress, 100.0)
        assert (await api.http.get("/health/live")).status_code == 200
        for path in ("/health", "/health/ready", "/health/progress"):
            response = await api.http.get(path)
            assert response.status_code == 503
            assert "no step of the engine has ended" in response.json()["reason"]
        refused = await api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "engine_stalled"
        api.engine.stuck = False
        assert (await running).status_code == 200
        api.front.progress.heard((await api.engine.stats())[0])
        for path in ("/health", "/health/ready", "/health/progress"):
            assert (await api.http.get(path)).status_code == 200
        await api.alive()


def test_a_server_notices_an_engine_that_is_stuck_and_one_that_gets_on_again(caplog: pytest.LogCaptureFixture) -> None:
    with served(Script(["a"] * 5), stall_timeout=0.6) as running, httpx.Client(timeout=20) as http:
        running.engine.stuck = True
        running.call(lambda: asyncio.ensure_future(ask(running.url)))
        eventually(lambda: http.get(running.url + "/health/ready").status_code == 503)
        assert http.get(running.url + "/health/live").status_code == 200
        assert "not ready: no step of the engine has ended" in caplog.text
        running.engine.stuck = False
        eventually(lambda: http.get(running.url + "/health/ready").status_code == 200)


async def ask(url: str) -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        assert (await http.post(url + "/v1/completions", json={"prompt": "a"})).status_code == 200


@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
async def test_a_jump_of_the_wall_clock_changes_nothing(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(Script(["a"] * 8, step_s=0.01)) as api:
        running = asyncio.ensure_future(api.post("/v1/completions", {"prompt": "a", "max_tokens": 8}))
        await asyncio.sleep(0.03)
        true_s = time.time
        monkeypatch.setattr(time, "time", lambda: true_s() + jump_s)
        assert (await running).status_code == 200
        metrics = api.front.metrics
        for histogram in (metrics.time_to_first_token, metrics.inter_token_latency, metrics.e2e_request_latency):
            assert 0 <= histogram.total < 60
        assert (await api.http.get("/health/ready")).status_code == 200
        await api.alive()
