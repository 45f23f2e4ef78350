"""Replicas on several hosts, each here a group of processes of its own, behind one API or behind one each: one text, and no hang."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import replace

import pytest

from octavo import LLM, AsyncLLM
from octavo.cluster import coordinator
from octavo.cluster.coordinator import Seat, all_replicas, start_coordinator
from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig
from octavo.engine.client import EngineDead
from octavo.engine.executor import ExecutorDead
from octavo.engine.lockstep import LockStep
from octavo.parallel.collectives import RankLost
from tests.cluster.first_host import FLAGS, LENGTHS, PROMPTS, texts
from tests.cluster.one_text import LIMIT_S, free_port
from tests.parallel.test_lockstep import MOE
from tests.parallel.test_lockstep import texts as texts_offline
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)


def of_one(model: str) -> list[list[int]]:
    llm = LLM(model, **FLAGS)
    found = texts_offline(llm, PROMPTS, LENGTHS)
    llm.close()
    return found


def test_servers_of_their_own_step_together(make_pair, tmp_path):  # noqa: F811
    make_pair("qwen3_moe", **MOE)
    shared = {"data_parallel_size": 2, "data_parallel_rpc_port": free_port(), "enable_expert_parallel": True}
    external = {**FLAGS, **shared, "data_parallel_rank": 1}
    hybrid = {**FLAGS, **shared, "data_parallel_size_local": 1, "data_parallel_hybrid_lb": True}  # from 0 on

    async def run() -> None:
        expected = of_one(str(tmp_path))
        starts = [AsyncLLM.start(str(tmp_path), **flags) for flags in (external, hybrid)]
        second, first = await asyncio.wait_for(asyncio.gather(*starts), 90)
        try:
            assert await texts(first) == expected, "the other one is idle"
            assert await asyncio.gather(texts(first), texts(second, range(2))) == [expected, expected[:2]]
            os.kill(first.engine.pids[0], signal.SIGKILL)
            with pytest.raises(EngineDead, match="engine 1: engine 0 has ended, and its experts with it"):
                await texts(second)
        finally:
            await asyncio.gather(first.close(), second.close())

    asyncio.run(run())


def test_which_replicas_are_where():
    def where(**flags: object) -> tuple[list[int], list[int]]:
        here, there, child = all_replicas(ParallelConfig(**flags))  # pyright: ignore[reportArgumentType]
        assert child is None, "those without experts need nobody between them"
        return [one.rank for one in here], [one.rank for one in there]

    assert where(data_parallel_size=3) == ([0, 1, 2], [])
    assert where(data_parallel_size=4, data_parallel_size_local=2) == ([0, 1], [2, 3])
    assert where(data_parallel_size=4, data_parallel_size_local=2, data_parallel_start_rank=2) == ([2, 3], [])
    assert where(data_parallel_size=4, data_parallel_size_local=2, data_parallel_hybrid_lb=True) == ([0, 1], [])
    assert where(data_parallel_size=4, data_parallel_rank=3) == ([3], [])
    assert where(data_parallel_size=4, nnodes=2) == ([0, 1], [2, 3])
    assert where(data_parallel_size=4, nnodes=2, node_rank=1, headless=True)[0] == [2, 3]
    assert where(data_parallel_size=4, nnodes=2, data_parallel_hybrid_lb=True) == ([0, 1], [])
    spread = ParallelConfig(data_parallel_size=2, nnodes=2, node_rank=1, headless=True, master_addr="10.0.0.1", master_port=7)
    assert (spread.data_parallel_address, spread.data_parallel_rpc_port, spread.ranks_per_host) == ("10.0.0.1", 7, 1)
    assert replace(spread, tensor_parallel_size=2).replicas_here == range(1, 2)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"data_parallel_rank": 4}, "--data-parallel-rank = 4 is not possible: --data-parallel-size is 4; use 0 to 3"),
        ({"data_parallel_rank": 1, "data_parallel_size_local": 2}, "one replica with an API of its own"),
        ({"data_parallel_external_lb": True}, "add --data-parallel-rank"),
        ({"data_parallel_hybrid_lb": True}, "give --data-parallel-size-local"),
        ({"data_parallel_size_local": 3, "data_parallel_start_rank": 2}, "replicas 2 to 4 would be here.*use at most 2"),
        ({"headless": True}, "give this host's --node-rank or --data-parallel-start-rank"),
        ({"distributed_executor_backend": "ray", "enable_expert_parallel": True}, "meet outside of Ray; use mp"),
    ],
)
def test_places_that_do_not_fit_are_refused_with_what_works(flags, error):
    with pytest.raises(ConfigError, match=error):
        ParallelConfig(data_parallel_size=4, **flags)


def test_an_address_that_is_taken_is_told_by_its_flags():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--data-parallel-rpc-port = {port} is not possible"):
            start_coordinator(2, "127.0.0.1", port)


def test_who_comes_wrongly_or_not_at_all_is_told(monkeypatch):
    child, address = start_coordinator(2)
    with pytest.raises(ExecutorDead, match=r"waits for engines \[0, 1\] of 2; this one came as engine 2 of 3"):
        Seat(address, 2, 3, None)
    child.kill()
    monkeypatch.setattr(coordinator, "PATIENCE_S", 0.3)
    with pytest.raises(ExecutorDead, match=r"does not answer within 0\.3 s"):
        Seat(address, 0, 2, None)


def test_who_lost_another_in_a_step_tells_what_the_coordinator_knows_of_it():
    child, address = start_coordinator(2)

    async def both() -> list[Seat]:
        return await asyncio.gather(*(asyncio.to_thread(Seat, address, rank, 2, None) for rank in range(2)))

    first, second = asyncio.run(both())
    in_a_collective = RankLost("rank 1 of 2 on host a was in all_reduce: Connection closed by peer")
    first.close()
    with pytest.raises(ExecutorDead, match="engine 0 has ended, and its experts with it"):
        LockStep(second).failed(in_a_collective)
    with pytest.raises(ExecutorDead, match="ValueError: no such block"):
        LockStep(second).failed(ValueError("no such block"))
    second.close()
    child.kill()


def test_one_that_leaves_before_all_have_come_is_told_to_those_who_wait():
    child, address = start_coordinator(3)
    with socket.create_connection(address) as leaving:
        hello = b"[1, 3, null]"
        leaving.sendall(len(hello).to_bytes(4, "big") + hello)

        async def wait_for_all() -> None:
            seat = asyncio.create_task(asyncio.to_thread(Seat, address, 0, 3, None))
            await asyncio.sleep(0.3)
            leaving.close()
            await asyncio.wait_for(seat, LIMIT_S)

        with pytest.raises(ExecutorDead, match="engine 1 has ended"):
            asyncio.run(wait_for_all())
    child.kill()
