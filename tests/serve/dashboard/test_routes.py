"""The page's routes without a browser: files, data, and who may see them."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from octavo.serve.dashboard.history import NAMES, History
from octavo.serve.dashboard.routes import MEDIA_TYPES
from tests.scripted_engine import Script
from tests.serve.serving import Client, client, make_front


async def data(api: Client, since: int = 0) -> dict[str, Any]:
    response = await api.http.get(f"/dashboard/data?since={since}")
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_page_and_all_that_it_names_come_from_this_server() -> None:
    async with client() as api:
        page = await api.http.get("/dashboard")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        named = set(re.findall(r'(?:href|src)="([^"]+)"', page.text)) - {"data:,", "metrics"}
        assert named == {"dashboard/style.css", "dashboard/page.js"}
        for name, kind in MEDIA_TYPES.items():
            if name == "page.html":
                continue
            answer = await api.http.get(f"/dashboard/{name}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), f"{name} reaches out"
            assert "https://" not in answer.text
            named |= {f"dashboard/{other}" for other in re.findall(r'from "\./(\w+\.js)"', answer.text)}
        assert {f"dashboard/{name}" for name in MEDIA_TYPES} - named == {"dashboard/page.html"}
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*src)|<style|style=|onclick", page.text), "the policy allows nothing inside the page"


async def test_the_ids_that_the_script_uses_are_on_the_page() -> None:
    async with client() as api:
        page = (await api.http.get("/dashboard")).text
        script = (await api.http.get("/dashboard/page.js")).text
        used = set(re.findall(r'get\("([\w-]+)"\)', script)) | {"now-kv", "more-kv", "now-itl", "more-itl"}
        assert {name for name in used if f'id="{name}"' not in page} == set()
        read = set(re.findall(r'(?:last|gauge|rate|grown|events)\("(\w+)"', script))
        assert read <= set(NAMES)


@pytest.mark.parametrize("name", ["nothing.js", "page.html", "history.py", "..%2fapp.py", ""])
async def test_nothing_else_is_given_away(name: str) -> None:
    async with client() as api:
        assert (await api.http.get(f"/dashboard/{name}")).status_code == 404


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_a_person_shows_a_key_as_the_password_and_only_here() -> None:
    async with client(api_key=("one", "ключ:2")) as api:
        for path in ("/dashboard", "/dashboard/style.css", "/dashboard/data"):
            for headers in ({}, basic("one", ""), basic("", "wrong"), {"Authorization": "Basic one"}, {"Authorization": "Basic ü"}):
                refused = await api.http.get(path, headers={name: value.encode() for name, value in headers.items()})
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Basic ")
            for headers in (basic("", "one"), basic("any", "ключ:2"), {"Authorization": "Bearer one"}):
                assert (await api.http.get(path, headers=headers)).status_code == 200
        for path in ("/metrics", "/v1/models", "/dashboards"):
            refused = await api.http.get(path, headers=basic("", "one"))
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await api.http.post("/dashboard/data", headers=basic("", "one"))).status_code == 405


async def test_the_data_tells_what_was_served() -> None:
    async with client(Script(["a", "b"], forever=True, num_cached_tokens=2)) as api:
        api.front.metrics.startup_s = {"load weights": 1.5}
        first = await data(api)
        assert (first["state"], first["model"]) == ("ready", "tiny")
        assert first["startup"] == [["load weights", 1.5]]
        assert len(first["samples"]) == 1
        for _ in range(3):
            await api.post("/v1/completions", {"prompt": "abc", "max_tokens": 5, "stream": True})
        history = History(api.front)
        await history.read()
        before = history.samples[-1]
        await api.post("/v1/completions", {"prompt": "abc", "max_tokens": 5, "stream": True})
        await history.read()
        now = history.samples[-1]
        grown = {name: after - then for name, then, after in zip(NAMES, before.values, now.values)}
        assert (grown["generated"], grown["prompt"], grown["cached"], grown["started"], grown["length"]) == (5, 4, 2, 1, 1)
        assert sum(now.ttft.values()) == 1
        assert sum(now.itl.values()) == 4
        assert before.ttft == {}, "what came before the first reading has no time"
        bounds = first["bounds"]
        assert max(now.ttft) <= len(bounds["ttft"])


async def test_readings_are_given_once_and_old_ones_go() -> None:
    history = History(make_front(), kept=3)
    for _ in range(5):
        await history.read()
    assert [sample.number for sample in history.samples] == [3, 4, 5]
    assert [sample.number for sample in await history.since(4)][:1] == [5]
    assert [sample.at_s for sample in history.samples] == sorted(sample.at_s for sample in history.samples)
    assert history._task is not None
    history._task.cancel()


async def test_readings_end_when_nobody_looks() -> None:
    now_s = 1000.0
    history = History(make_front(), every_s=0.0, clock=lambda: now_s)
    await history.since(0)
    now_s += 10_000
    assert history._task is not None
    await history._task
    assert not history.samples
    assert [sample.number for sample in await history.since(0)] == [2], "and begin again"
    history._task.cancel()


async def test_a_dead_engine_is_told() -> None:
    async with client() as api:
        api.engine.dead = "RuntimeError: gone"
        told = await data(api)
        assert (told["state"], told["reason"]) == ("dead", "RuntimeError: gone")


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "9" * 40, "٣"])
async def test_a_reading_that_cannot_be(since: str) -> None:
    async with client() as api:
        response = await api.http.get("/dashboard/data", params={"since": since})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "since"
