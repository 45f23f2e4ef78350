"""Several engines behind a router: their texts are those of one, questions go to all, and the first one's death is everybody's."""

from __future__ import annotations

import asyncio

import pytest

from octavo.engine.client import EngineDead, EngineStats, together
from octavo.engine.replicas import StartedReplicas
from octavo.types import FinishReason
from tests.engine.fake_engine import DEADLY, SLOW, request, text
from tests.engine.reading import Reading, news_of

BUILD = "tests.engine.fake_engine:build"


async def read(engine, one) -> list[int]:
    got: list[int] = []
    async for output in news_of(engine, one):
        got.extend(output.token_ids)
    return got


def with_replicas(use, count: int = 2, build: str = BUILD):
    async def run():
        replicas = await asyncio.wait_for(StartedReplicas.start(build, [(number,) for number in range(count)]), 60)
        try:
            return await asyncio.wait_for(use(replicas), 60)
        finally:
            await replicas.close()

    return asyncio.run(run())


async def reset_beside_a_request(replicas):
    """Whether the caches were reset: not while the request runs, which on a busy machine may have ended before the question comes."""
    running = asyncio.create_task(read(replicas, request("long", 1, 2, max_tokens=60)))
    await asyncio.sleep(0)
    done = await replicas.reset_prefix_cache()
    await running
    return done


def test_requests_are_spread_and_questions_go_to_all():
    async def use(replicas):
        assert replicas.info == {"max_model_len": 63, "kv_tokens": 256, "block_size": 4, "number": 0}
        requests = [request(f"r{k}", k + 1, 2, 3) for k in range(12)]
        assert await asyncio.gather(*(read(replicas, one) for one in requests)) == [text(one) for one in requests]
        stats = await replicas.stats()
        assert [one.generation_tokens for one in stats] == [48, 48]
        assert together(stats).generation_tokens == 96
        assert await replicas.advice() == [{"kind": "none", "engine": 0}, {"kind": "none", "engine": 1}]
        assert [await reset_beside_a_request(replicas) for _ in range(20)].count(False), "one of them had blocks in use"
        assert await replicas.reset_prefix_cache()

    with_replicas(use)


def test_the_router_hears_of_what_runs():
    async def use(replicas):
        readings = [Reading() for _ in range(3)]
        replicas.add(request("long", 1, 2, max_tokens=60), readings[0])
        replicas.add(request("short", 3, 4, max_tokens=1), readings[1])
        await readings[1].news.get()
        await replicas._ask_load(0)
        await replicas._ask_load(1)
        replicas.add(request("next", 5, 6, max_tokens=1), readings[2])
        assert [engine.follows("next") for engine in replicas._engines] == [False, True], "the first one still runs another"

    with_replicas(use)


def test_what_is_said_of_a_request_reaches_its_engine():
    async def use(replicas):
        first, second = Reading(), Reading()
        replicas.add(request("a", 1, 2, max_tokens=60), first)
        replicas.add(request("b", 3, 4, max_tokens=60), second)
        await first.news.get()
        replicas.abort("a")
        replicas.finish("b", 0, FinishReason.STOP, 1)
        assert [one.num_requests_running for one in await replicas.stats()] == [0, 0]

    with_replicas(use)


def test_one_death_ends_all_with_its_own_error():
    async def use(replicas):
        others = [asyncio.create_task(read(replicas, request(f"r{k}", SLOW, k, max_tokens=60))) for k in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(EngineDead, match="engine 0: the engine process ended with code 7"):
            await read(replicas, request("deadly", DEADLY))
        for other in others:
            with pytest.raises(EngineDead, match="engine 0: the engine process ended with code 7"):
                await other
        assert replicas.dead.startswith("engine 0")
        with pytest.raises(EngineDead, match="engine 0"):
            await read(replicas, request("late", 1))

    with_replicas(use)


def test_a_failed_start_of_one_is_told():
    with pytest.raises(EngineDead, match="engine 1: ValueError: there is no second device"):
        with_replicas(None, build="tests.engine.fake_engine:build_all_but_the_second")


def test_readings_of_several_engines_are_one():
    both = [
        EngineStats(kv_cache_usage=0.2, num_steps=3, now_s=5.0, counters={"a": 1.0}, histograms={"h": [(1.0, 2), (2.0, 0)]}),
        EngineStats(kv_cache_usage=0.4, num_steps=4, now_s=6.0, counters={"a": 2.0, "b": 1.0}, histograms={"h": [(1.0, 1), (2.0, 5)]}),
    ]
    one = together(both)
    assert (one.kv_cache_usage, one.num_steps, one.now_s) == (pytest.approx(0.3), 7, 6.0)
    assert (one.counters, one.histograms) == ({"a": 3.0, "b": 1.0}, {"h": [(1.0, 3), (2.0, 5)]})
    assert together([True, False]) is False
