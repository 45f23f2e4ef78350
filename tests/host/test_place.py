"""Processes are where they were asked to be: read back from the kernel, before and after they start threads."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.engine.processes import ProcessExecutor
from octavo.engine.workers import Workers
from octavo.host.cores import allowed_cores
from octavo.host.place import Place, PlaceError

CORE = max(allowed_cores())
READ = "print(open('/proc/self/status').read(), open('/proc/self/numa_maps').read())"


def status(pid: int | str, name: str) -> str:
    return re.search(rf"^{name}:\s*(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]


def test_a_process_that_starts_in_a_place_is_bound_before_it_runs() -> None:
    before = os.sched_getaffinity(0)
    place = Place(cores=(CORE,), nodes=(0,), strict=True)
    shown = place.run(lambda: subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True).stdout)
    assert re.search(rf"^Cpus_allowed_list:\s*{CORE}$", shown, re.MULTILINE)
    assert " bind:0 " in shown
    assert os.sched_getaffinity(0) == before


def test_what_the_system_refuses_is_said() -> None:
    with pytest.raises(PlaceError, match="cores 5000 cannot be used"):
        Place(cores=(5000,)).run(lambda: None)
    with pytest.raises(PlaceError, match="memory cannot be bound to node 900: Invalid argument"):
        Place(nodes=(900,), strict=True).run(lambda: None)
    assert Place(nodes=(900,)).run(lambda: 5) == 5


def test_a_place_in_words() -> None:
    assert str(Place(3, (0, 1, 4), True, (1,))) == "3 threads, pinned to cores 0-1,4, memory of node 1"
    assert str(Place()) == "anywhere"


def test_workers_and_their_threads_are_on_the_cores_of_their_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(allowed_cores())
    places = [Place(2, (first, CORE), pinned=True), Place(2, (CORE,))]
    executor = ProcessExecutor([Workers("tests.host.team:build", (), 2, places=places)])
    try:
        pids = [told["pid"] for told in executor.told]
        assert [status(pid, "Cpus_allowed_list") for pid in pids] == [str(first), str(CORE)]
        assert [told["threads"] for told in executor.told] == [2, 2]
        for pid, cores in zip(pids, ({first, CORE}, {CORE})):
            tasks = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
            assert set().union(*map(os.sched_getaffinity, tasks)) == cores
            lanes = [task for task in tasks if Path(f"/proc/{pid}/task/{task}/comm").read_text() == "octavo-lane\n"]
            assert [os.sched_getaffinity(task) for task in lanes] == [{CORE}]
    finally:
        executor.close()


def test_the_engine_s_process_is_on_the_cores_of_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo import AsyncLLM

    monkeypatch.setenv("OCTAVO_CPU_OMP_THREADS_BIND", str(CORE))

    async def start() -> str:
        llm = await AsyncLLM.start("smollm2-135m", max_model_len=64, kv_cache_memory_bytes=32 << 20)
        try:
            return status(llm.engine.pid, "Cpus_allowed_list")
        finally:
            await llm.close()

    assert asyncio.run(start()) == str(CORE)
