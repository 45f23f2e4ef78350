"""Putting a served model to sleep, over HTTP, with a real engine in its process; and other orders."""

import asyncio
from typing import Any

import httpx

from octavo.config.engine import EngineConfig
from octavo.config.server import ServerConfig
from octavo.serve.app import create_app
from octavo.serve.start import start_front
from tests.serve.serving import client

ASKED = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


async def test_a_served_model_sleeps_and_wakes():
    flags: dict[str, Any] = {"max_model_len": 256, "kv_cache_memory_bytes": 32 << 20, "enable_sleep_mode": True}
    front = await start_front(EngineConfig.from_flags(model="smollm2-135m", **flags), ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(front)), base_url="http://octavo") as http:
        expected = (await http.post("/v1/completions", json=ASKED)).json()["choices"][0]["text"]
        long = asyncio.create_task(http.post("/v1/completions", json={**ASKED, "max_tokens": 200, "ignore_eos": True}))
        while not front.running:
            await asyncio.sleep(0.01)
        for query in ({"level": 1}, {"level": 2, "mode": "wait"}):
            assert (await http.post("/sleep", params=query)).status_code == 200
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            for stream in (False, True):
                refused = await http.post("/v1/completions", json={**ASKED, "stream": stream})
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
                assert refused.json()["error"]["code"] == "engine_asleep"
            assert (await http.get("/health/ready")).status_code == 503
            assert (await http.get("/health")).status_code == 200
            assert "octavo:sleep_level{" in (await http.get("/metrics")).text
            assert (await http.post("/wake_up", params={"tags": "weights"})).status_code == 200
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            assert (await http.post("/wake_up")).status_code == 200
            assert (await http.get("/health/ready")).status_code == 200
            assert (await http.post("/v1/completions", json=ASKED)).json()["choices"][0]["text"] == expected
        assert (await long).json()["choices"][0]["finish_reason"] == "abort"
    await front.engine.close()


async def test_without_the_flag_nobody_can_put_it_to_sleep():
    async with client() as api:
        for path in ("/sleep", "/wake_up"):
            answer = await api.post(path)
            assert answer.status_code == 400
            assert "--enable-sleep-mode" in answer.json()["error"]["message"]
        assert (await api.http.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_queries_are_checked():
    async with client() as api:
        object.__setattr__(api.front.model, "can_sleep", True)
        for query, word in (("/sleep?level=3", "level"), ("/sleep?mode=keep", "mode"), ("/wake_up?tags=x", "tags")):
            answer = await api.post(query)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == word


async def test_profiles_are_begun_and_ended_by_order():
    async with client() as api:
        for path in ("/start_profile", "/stop_profile"):
            assert (await api.post(path)).status_code == 200
        assert api.engine.orders == [("start_profile",), ("stop_profile",)]
        api.engine.complaints = ["ValueError: no profile is being taken"]
        refused = await api.post("/stop_profile")
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "No profile: no profile is being taken."
