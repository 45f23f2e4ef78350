"""What waits for a first token: how long by the estimate, and who is refused, with which answer."""

import asyncio
import random

import pytest

from octavo.config.fields import ConfigError
from octavo.config.server import ServerConfig
from octavo.engine.client import EngineStats
from octavo.ledger import Ledger
from octavo.serve.errors import ApiError
from octavo.serve.queue import Queue
from tests.scripted_engine import Script
from tests.serve.serving import client
from tests.serve.test_first_token import reading
from tests.serve.test_metrics import read, value


def test_nothing_is_refused_before_anything_is_known() -> None:
    queue = Queue(ServerConfig(admission_ttft_ms=1.0), lambda: 0.0)
    queue.joined(1000)
    queue.check(1, 1000)
    queue.estimate.heard(reading(100.0))
    with pytest.raises(ApiError, match=r"about 20.0 s, the limit is 0.001 s"):
        queue.check(1, 1000)


class Told:
    """An estimate that a test dictates."""

    expected_s: float | None = 0.0

    def changed(self, now_s: float, num_waiting: int, num_read: int = 0) -> None:
        pass

    def heard(self, stats: EngineStats) -> None:
        pass

    def seconds(self, num_ahead: int, num_own: int) -> float | None:
        return self.expected_s


def test_the_limit_holds_for_nearly_all_not_on_average() -> None:
    """Waits are as expected on average, and up to 40 % off."""
    draw, now_s, estimate = random.Random(3), [0.0], Told()
    queue = Queue(ServerConfig(admission_ttft_ms=1000.0), lambda: now_s[0], estimate)
    queue.joined(1)  # somebody waits all the time
    taken: list[tuple[float, float]] = []
    for _ in range(6000):
        estimate.expected_s = draw.uniform(0.1, 2.0)
        try:
            queue.check(1, 1)
        except ApiError:
            continue
        place = queue.joined(1)
        taken.append((estimate.expected_s, estimate.expected_s * draw.uniform(0.6, 1.4)))
        now_s[0] += taken[-1][1]
        queue.left(place, read=True)
    later = taken[len(taken) // 2 :]
    assert sum(took > 1.0 for _, took in later) <= 0.01 * len(later)
    assert max(expected for expected, _ in later) > 0.65, "and no more is refused than that asks for"
    assert queue.num_requests == queue.num_tokens == 1


def test_where_waits_are_as_expected_the_whole_limit_is_used() -> None:
    now_s, estimate = [0.0], Told()
    queue = Queue(ServerConfig(admission_ttft_ms=1000.0), lambda: now_s[0], estimate)
    queue.joined(1)
    estimate.expected_s = 0.99
    for _ in range(1000):
        queue.check(1, 1)
        place = queue.joined(1)
        now_s[0] += 0.98
        queue.left(place, read=True)


def test_another_estimate_takes_its_place() -> None:
    estimate = Told()
    estimate.expected_s = 7.5
    queue = Queue(ServerConfig(admission_ttft_ms=1000.0), lambda: 0.0, estimate)
    queue.check(1, 5)
    queue.joined(5)
    with pytest.raises(ApiError) as refusal:
        queue.check(1, 5)
    assert refusal.value.headers == {"Retry-After": "7"}


@pytest.mark.parametrize("stream", [False, True])
async def test_who_would_wait_too_long_is_told_so_at_once(stream: bool) -> None:
    async with client(Script(prefill_s=0.3), admission_ttft_ms=5000.0) as api:
        api.front.heard(reading(10.0))
        body = {"prompt": [5] * 30, "max_tokens": 1, "stream": stream}
        first = asyncio.ensure_future(api.post("/v1/completions", body))
        await asyncio.sleep(0.1)
        assert (await api.http.get("/load")).json() == {
            "server_load": 1, "num_requests_waiting": 1, "num_tokens_waiting": 30, "expected_ttft_s": pytest.approx(3.0, abs=1.5),
        }  # fmt: skip
        refused = await api.post("/v1/completions", body)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "wait_too_long"
        assert 1 <= int(refused.headers["retry-after"]) <= 4
        assert (await api.post("/v1/completions", body | {"prompt": [5]})).status_code == 200, "a short one is read in time"
        assert (await first).status_code == 200
        families = await read(api)
        assert value(families, "octavo:requests_refused/_total", code="wait_too_long") == 1
        assert value(families, "octavo:requests_started/_total") == 2
        await api.alive()


def test_limits_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="admission-ttft-ms"):
        ServerConfig(admission_ttft_ms=0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "user": "ann"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "user": "ann"}),
        ("/v1/responses", {"input": "a", "user": "ann"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "metadata": {"user_id": "ann"}}),
        ("/v1/embeddings", {"input": "a", "user": "ann"}),
    ],
)
async def test_whose_share_a_request_takes(path: str, body: dict) -> None:
    async with client() as api:
        assert (await api.post(path, body)).status_code == 200
        await api.post("/v1/completions", {"prompt": "a"})
        assert [request.tenant for request in api.engine.requests] == ["ann", None]


def test_what_waits_in_one_process_has_no_room_in_another() -> None:
    first = Ledger(2)
    config = ServerConfig(max_num_queued_reqs=2)
    ours, theirs = (Queue(config, lambda: 0.0, ledger=ledger) for ledger in (first, Ledger(2, 1, first.fd)))
    places = [ours.joined(10), theirs.joined(5)]
    for queue in (ours, theirs):
        assert (queue.num_requests, queue.num_tokens) == (2, 15)
        with pytest.raises(ApiError, match="2 requests are waiting"):
            queue.check(1, 1)
    ours.left(places[0], read=True)
    theirs.check(1, 1)


async def test_who_is_refused_need_not_wait_until_a_long_text_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(Script(prefill_s=60.0), max_num_queued_reqs=1) as api:
        waiting = asyncio.create_task(api.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
        while not api.front.queue.num_requests:
            await asyncio.sleep(0)
        monkeypatch.setattr(api.front.model.tokenizer, "encode", None)
        answer = await api.post("/v1/completions", {"prompt": "a" * 5000, "max_tokens": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
