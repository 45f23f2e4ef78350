"""The engine in its own process: news arrives, questions are answered, and no death of one side leaves the other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from octavo.engine.client import EngineDead
from octavo.engine.remote import RemoteEngine
from octavo.engine.replicas import connect
from octavo.types import FinishReason, Request, SamplingParams
from tests.engine.reading import Reading, news_of


def request(name: str, tokens, **params) -> Request:
    return Request(name, tuple(tokens), SamplingParams(**params))


async def read(engine: RemoteEngine, name: str, tokens) -> list[int]:
    got: list[int] = []
    async for output in news_of(engine, request(name, tokens)):
        got.extend(output.token_ids)
    return got


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def with_engine(build: str, use):
    async def run():
        engine = await RemoteEngine.start(build, ())
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def test_news_of_many_requests_arrive_in_order():
    async def use(engine):
        assert engine.info == {"hello": "front"}
        prompts = {f"r{k}": list(range(k, k + 20)) for k in range(10)}
        texts = await asyncio.gather(*(read(engine, name, tokens) for name, tokens in prompts.items()))
        assert list(texts) == list(prompts.values())
        (stats,) = await engine.stats()
        assert stats.num_requests_running == 0
        assert stats.counters["strange"] == 3

    with_engine("tests.engine.echo:build", use)


class Slow(Reading):
    """A reader that takes longer for its news than the engine does."""

    def take(self, news):
        time.sleep(0.004)
        super().take(news)


def test_a_front_that_is_behind_does_other_things_between_two_messages():
    async def use(engine):
        slow = Slow()
        engine.add(request("slow", range(100)), slow)
        told = [0]
        while told[-1] < 60:
            await asyncio.sleep(0)
            told.append(slow.news.qsize())
        assert max(after - before for before, after in pairwise(told)) == 1
        engine.abort("slow")

    with_engine("tests.engine.echo:build", use)


def test_a_reader_that_leaves_aborts_its_request():
    async def use(engine):
        stream = news_of(engine, request("gone", range(10_000)))
        await anext(stream)
        await stream.aclose()
        assert await read(engine, "next", [1, 2]) == [1, 2]
        assert (await engine.stats())[0].num_requests_running == 0

    with_engine("tests.engine.echo:build", use)


def test_finish_by_the_front_ends_the_stream():
    async def use(engine):
        reading = Reading()
        engine.add(request("stopped", range(10_000)), reading)
        await reading.news.get()
        engine.finish("stopped", 0, FinishReason.STOP, 1)
        told = reading.news.qsize()
        assert (await engine.stats())[0].num_requests_running == 0
        assert reading.news.qsize() == told, "nothing follows"

    with_engine("tests.engine.echo:build", use)


@pytest.mark.parametrize(("token", "said"), [(666, "RuntimeError: told to fail"), (667, "code 7")])
def test_a_dead_engine_ends_every_stream_with_its_own_error(token, said):
    async def use(engine):
        other = asyncio.create_task(read(engine, "other", range(10_000)))
        with pytest.raises(EngineDead, match=said):
            await read(engine, "deadly", [token])
        with pytest.raises(EngineDead, match=said):
            await other
        assert said in engine.dead
        with pytest.raises(EngineDead):
            await read(engine, "late", [1])

    with_engine("tests.engine.echo:build", use)


def test_a_failed_start_raises_the_childs_first_error():
    with pytest.raises(EngineDead, match="ValueError: no such model: use another"):
        with_engine("tests.engine.echo:build_and_fail", None)


def test_a_start_that_was_asked_wrongly_says_so_and_no_more(capfd):
    with pytest.raises(EngineDead, match=r"^--max-model-len = 9000 is not possible: use at most 8192$"):
        with_engine("tests.engine.echo:build_wrongly", None)
    assert "Traceback" not in capfd.readouterr().err


def test_each_of_several_fronts_hears_its_own_news_and_one_that_leaves_is_not_served_on():
    async def use(engine):
        other = connect(engine.doors)
        assert other.info == engine.info
        endless = Reading()
        other.add(request("endless", range(1 << 16)), endless)
        assert await asyncio.gather(read(engine, "ours", [1, 2, 3]), read(other, "theirs", [4, 5])) == [[1, 2, 3], [4, 5]]
        await endless.news.get()
        assert (await engine.stats())[0].num_requests_running == 1
        await other.close()  # without a word to the engine, as when its process is killed
        end = time.monotonic() + 10
        while (await engine.stats())[0].num_requests_running:
            assert time.monotonic() < end, "its request goes on"
            await asyncio.sleep(0.01)
        assert await read(engine, "later", [7]) == [7]

    with_engine("tests.engine.echo:build", use)


def test_close_ends_a_hung_engine():
    async def run():
        engine = await RemoteEngine.start("tests.engine.echo:build", ())
        reader = asyncio.create_task(read(engine, "hang", [668, 1]))
        await asyncio.sleep(0.1)
        await engine.close()
        with pytest.raises(EngineDead):
            await reader
        return engine.pid

    assert not alive(asyncio.run(run()))


PARENT = """
import asyncio, signal, sys
from octavo.engine.remote import RemoteEngine
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
async def main():
    engine = RemoteEngine(sys.argv[1], ())
    print(engine.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("build", ["tests.engine.echo:build", "tests.engine.echo:build_slowly"])
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_does_not_outlive_its_parent(build, death):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, build], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.getcwd())
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(death)
    parent.wait()
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)
