"""Workers on several hosts, each here a group of processes of its own: outcomes, first errors, and ends that reach all."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from octavo.cluster.far import gather, listen
from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig
from octavo.engine.executor import ExecutorDead
from octavo.engine.process import Child, spawn
from octavo.engine.processes import ProcessExecutor
from octavo.engine.workers import Workers
from octavo.host.network import NobodyThere, connect, interface_of
from tests.cluster.one_text import LIMIT_S
from tests.engine.test_processes import alive, check_for, plan
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)

FLAGS = {"nnodes": 2}


@pytest.fixture
def start():
    """start(flavour) -> (executor of this host's ranks 0 and 1 and the other's 2 and 3, the process of the other's agent)."""
    made: list[ProcessExecutor] = []
    agents: list[Child] = []

    def go(flavour: str = "good", flags=FLAGS, patience_s: float = 30.0):
        with listen("127.0.0.1", 0, 2) as listener:
            agents.append(spawn("tests.cluster.fake_host:run", listener.getsockname()[:2], 1, 2, flavour, flags))
            (host,) = gather(listener, [1], FLAGS, patience_s)
        host.begin(flavour)
        workers = Workers("tests.engine.fake_worker:build", (flavour,), 4, range(2))
        made.append(ProcessExecutor([workers, host]))
        return made[-1], agents[-1]

    go.agents = agents
    yield go
    for executor in made:
        executor.close()
    for agent in agents:
        agent.kill()


def test_the_last_rank_of_the_last_host_gives_the_outcomes(start):
    executor, agent = start()
    assert [told["rank"] for told in executor.told] == [0, 1, 2, 3]
    steps = [executor.submit(plan(number, number)) for number in range(5)]
    assert [step.result().tokens for step in reversed(steps)] == [[[103 + number]] for number in (4, 3, 2, 1, 0)]
    half = plan(5, 5, masked=(0,))
    step = executor.submit(half)
    executor.sample(half, [77])
    assert step.result().tokens == [[77]]
    executor.check()
    executor.close()
    assert agent.end() == "code 0", "it ends well with the engine"


@pytest.mark.parametrize("rank", [0, 3])
def test_a_killed_rank_ends_all_hosts_with_its_error(start, rank):
    executor, agent = start()
    step, begin_s = executor.submit(plan(15, 1)), time.monotonic()
    os.kill(executor.told[rank]["pid"], signal.SIGKILL)
    error = f"worker {rank}: its process ended with signal 9"
    with pytest.raises(ExecutorDead, match=error):
        step.result()
    assert error in agent.last_word().text, "the other host's process ends with the same error"
    assert time.monotonic() - begin_s < LIMIT_S
    assert not any(alive(told["pid"]) for told in executor.told)


def test_a_host_that_is_lost_is_named_and_takes_its_ranks_along(start):
    executor, agent = start()
    agent.process.kill()
    begin_s = time.monotonic()
    with pytest.raises(ExecutorDead, match=r"host 1 \(.+\) is lost: its process has ended"):
        check_for(executor, LIMIT_S)
    while any(alive(told["pid"]) for told in executor.told):
        assert time.monotonic() < begin_s + LIMIT_S
        time.sleep(0.01)


def test_a_failed_start_there_is_told_here(start):
    with pytest.raises(ExecutorDead, match="worker 1: ValueError: this rank has no device"):
        start("broken")
    (agent,) = start.agents
    assert "this rank has no device" in agent.last_word().text


def test_ranks_that_hang_are_named_with_host_and_operation(start, monkeypatch):
    executor, _ = start()
    monkeypatch.setenv("OCTAVO_EXECUTE_MODEL_TIMEOUT_SECONDS", "0.5")
    step = executor.submit(plan(15, 1))
    found = r"within 0.5 s on host .*worker 0 .* launches step 15; worker 1 .*; on host .*: worker 2 .*; worker 3 .* launches step 15"
    with pytest.raises(ExecutorDead, match=found):
        step.result()


def test_a_host_with_other_flags_is_refused_on_both_sides(start):
    with pytest.raises(ConfigError, match=r"--nnodes = 3 is not possible: host 1 .* and the first host 2"):
        start(flags={"nnodes": 3})
    assert "--nnodes = 3 is not possible" in start.agents[0].last_word().text


def test_a_host_that_does_not_come_is_named(start):
    with pytest.raises(ExecutorDead, match=r"host 1 did not come to 127.0.0.1:\d+ within 1 s"):
        start("late", patience_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NobodyThere, match=f"127.0.0.1:{port} does not answer within 0.3 s"):
        connect("127.0.0.1", port, 0.3)


def test_strangers_are_left_at_the_door(start):
    with listen("127.0.0.1", 0, 2) as listener:
        for hello in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}"):
            with socket.create_connection(listener.getsockname()) as stranger:
                stranger.sendall(hello)
        with pytest.raises(ExecutorDead, match="host 1 did not come"):
            gather(listener, [1], FLAGS, 1.0)


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"nnodes": 2}, "--nnodes = 2 is not possible.*use --pipeline-parallel-size 2 "),
        ({"nnodes": 2, "pipeline_parallel_size": 3, "tensor_parallel_size": 2}, "use --pipeline-parallel-size 4 "),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "node_rank": 2, "headless": True}, "--node-rank = 2 is not possible.*use 0 to 1"),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "node_rank": 1}, "add --headless"),
        ({"nnodes": 2, "data_parallel_size": 3}, "--nnodes = 2 is not possible: each host has whole replicas.*use --data-parallel-size 2"),
        ({"nnodes": 2, "data_parallel_size": 2, "node_rank": 1}, "add --headless, or --data-parallel-hybrid-lb on all"),
        ({"nnodes": 2, "data_parallel_size": 2, "data_parallel_size_local": 1}, "it follows from --nnodes and --node-rank"),
        ({"nnodes": 2, "data_parallel_size": 2, "node_rank": 2, "headless": True}, "--node-rank = 2 is not possible.*use 0 to 1"),
        ({"nnodes": 2, "pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}, "Ray knows the hosts"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_works(flags, error):
    with pytest.raises(ConfigError, match=error):
        ParallelConfig(**flags)
