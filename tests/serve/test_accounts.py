"""API keys from a file: their limits, their counts, their shares; and that no route is open that is not meant to be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.config.fields import ConfigError
from octavo.serve.accounts import Account, Bucket, Limits
from octavo.serve.app import OPEN_PATHS
from octavo.serve.errors import ApiError
from tests.scripted_engine import Script
from tests.serve.serving import Client, client, make_front
from tests.serve.test_metrics import read, value

KEYS = """
web: {key: one, max_concurrent_requests: 2}
batch: {key: [two, three], requests_per_minute: 3}
free: {key: four, tokens_per_minute: 20}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS, "utf-8")
    return str(path)


async def ask(api: Client, key: str, **body):
    return await api.post("/v1/completions", {"prompt": "ab", "max_tokens": 4, **body}, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("stream", [False, True])
async def test_each_key_has_its_own_limits(file: str, stream: bool) -> None:
    async with client(Script(["a"] * 8, prefill_s=0.05), api_key_file=file) as api:
        statuses = [answer.status_code for answer in await asyncio.gather(*(ask(api, "one", stream=stream) for _ in range(4)))]
        assert sorted(statuses) == [200, 200, 429, 429]
        answers = [await ask(api, key, stream=stream) for key in ("two", "three", "two", "three")]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "'batch'" in refused.json()["error"]["message"]
        assert 15 <= int(refused.headers["retry-after"]) <= 20
        assert [(await ask(api, "four", stream=stream)).status_code for _ in range(4)] == [200, 200, 200, 429], "seven tokens each"
        assert (await ask(api, "five", stream=stream)).status_code == 401
        http = api.http
        http.headers["Authorization"] = "Bearer one"
        families = await read(api)
        assert value(families, "octavo:api_key_requests/_total", api_key="web") == 2
        assert value(families, "octavo:api_key_requests_refused/_total", api_key="web") == 2
        assert value(families, "octavo:api_key_requests/_total", api_key="batch") == 3
        assert value(families, "octavo:api_key_generation_tokens/_total", api_key="free") == 12
        assert value(families, "octavo:api_key_requests_running", api_key="web") == 0
        assert value(families, "octavo:requests_refused/_total", code="rate_limit_exceeded") == 4
        assert {request.tenant for request in api.engine.requests} == {"web", "batch", "free"}
        await api.alive()


def test_a_bucket_fills_again_and_takes_nothing_twice() -> None:
    bucket = Bucket(60, 0.0)
    assert bucket.wait_s(0, 0.0) == 0
    assert bucket.wait_s(60, 0.0) == pytest.approx(1.0)
    assert bucket.wait_s(60, 2.0) == 0
    assert bucket.wait_s(160, 2.0) == pytest.approx(99.0), "what it took beyond, it owes"
    assert bucket.wait_s(160, 1e6) == 0
    assert bucket.wait_s(220, 1e6) == pytest.approx(1.0), "no more than a minute's worth is kept"


def test_what_is_larger_than_a_limit_is_not_refused_for_ever() -> None:
    now = [0.0]
    account = Account("a", Limits(requests_per_minute=2), lambda: now[0])
    account.check(100)
    for _ in range(100):
        account.started(1)
    with pytest.raises(ApiError):
        account.check(1)
    now[0] = 51 * 60.0
    account.check(1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a mapping"), ("- a", "a mapping"), ("{", "no YAML"), ("a: {}", "key must be"), ("a: {key: 5}", "quote it"),
        ("a: {key: ''}", "key must be"), ("a: {key: k, rate: 5}", "max_concurrent_requests"),
        ("a: {key: k, tokens_per_minute: 0}", "at least 1"),
        ("a: {key: k}\nb: {key: [k]}", "twice"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_how_without_showing_keys(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=told):
        make_front(api_key_file=str(tmp_path / "keys"))
    with pytest.raises(ConfigError, match="cannot be read"):
        make_front(api_key_file=str(tmp_path / "none"))


async def test_every_route_that_there_is_asks_for_a_key(file: str) -> None:
    async with client(api_key_file=file) as api:
        app = api.http._transport.app  # pyright: ignore
        pairs = [(method, route.path) for route in app.routes for method in route.methods]
        assert len(pairs) > 30
        for method, path in pairs:
            response = await api.http.request(method, path.replace("{name:path}", "tiny").replace("{name}", "page.js"))
            assert (response.status_code == 401) == (path not in OPEN_PATHS), (method, path)
