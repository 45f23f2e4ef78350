"""Which node, cores and memory the process of a GPU gets, on machines and drivers that are not there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig
from octavo.engine.processes import ProcessExecutor
from octavo.engine.workers import Workers
from octavo.host import numa
from octavo.host.numa import engine_place, numa_places
from octavo.host.nvml import Gpu, read_driver, sysfs_address, visible
from octavo.host.place import Place
from octavo.host.topology import Topology
from tests.host.trees import two_sockets, write

ATTACHED = {0: 0, 1: 0, 2: 1, 3: 1}.get
SOCKETS = {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)}


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "allowed_cores", lambda: frozenset(range(16)))


def places(tmp_path: Path, devices: range = range(4), node_of=ATTACHED, **flags) -> list[Place]:
    return numa_places(ParallelConfig(numa_bind=True, **flags), devices, two_sockets(tmp_path), node_of)


def test_each_gpu_gets_the_node_it_is_attached_to(tmp_path: Path) -> None:
    assert places(tmp_path) == [Place(cores=SOCKETS[node], nodes=(node,), strict=True) for node in (0, 0, 1, 1)]


def test_lists_count_over_what_the_system_says(tmp_path: Path) -> None:
    found = places(tmp_path, numa_bind_nodes=(1, 1, 0, 0), numa_bind_cpus=("4-5", "6,7", "0", "1"))
    assert [(place.cores, place.nodes) for place in found] == [((4, 5), (1,)), ((6, 7), (1,)), ((0,), (0,)), ((1,), (0,))]
    assert [place.nodes for place in places(tmp_path, range(2, 4), numa_bind_nodes=(1, 1, 0, 1))] == [(0,), (1,)]


def test_what_is_not_known_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not say which node GPU 0 is attached to; give one for each GPU: --numa-bind-nodes"):
        places(tmp_path, node_of=lambda _: None)
    one = Topology({0: (0, 1)}, {})
    assert numa_places(ParallelConfig(numa_bind=True), [0], one, lambda _: None) == [Place(cores=(0, 1), nodes=(0,), strict=True)]


@pytest.mark.parametrize(("flags", "why"), [
    ({"numa_bind_nodes": (0, 1)}, "numa-bind-nodes.*GPU 2 has no entry; give one for each visible GPU"),
    ({"numa_bind_nodes": (0, 3, 0, 0)}, "this machine has nodes 0-1"),
    ({"numa_bind_cpus": ("0", "1", "2", "90-91")}, "90-91.*none of these cores may be used here; allowed: 0-15"),
])  # fmt: skip
def test_lists_that_do_not_fit_the_machine_are_refused(tmp_path: Path, flags, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        places(tmp_path, **flags)


@pytest.mark.parametrize(("flags", "why"), [
    ({"numa_bind_nodes": (0,)}, "add --numa-bind"),
    ({"numa_bind_cpus": ("0",)}, "add --numa-bind"),
    ({"numa_bind": True, "numa_bind_nodes": (-1,)}, "at least 0"),
    ({"numa_bind": True, "numa_bind_cpus": ("0-3", "4-")}, "'4-' is neither a number nor a range"),
])  # fmt: skip
def test_lists_that_are_none_are_refused_at_once(flags, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ParallelConfig(**flags)


def test_a_list_is_cut_to_what_a_container_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(numa, "allowed_cores", lambda: frozenset({0, 1}))
    assert places(tmp_path, range(1), numa_bind_cpus=("0-3",))[0].cores == (0, 1)
    assert "--numa-bind-cpus 0-3: cores 2-3 may not be used here; GPU 0 has 0-1" in caplog.text
    with pytest.raises(ConfigError, match="none of its cores 4-7,12-15 may be used here; allowed: 0-1"):
        places(tmp_path, range(2, 3))


def test_the_engine_is_beside_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = two_sockets(tmp_path)
    monkeypatch.setattr(numa, "gpu_node", None)
    of = {"numa_bind": True, "numa_bind_nodes": (0, 1, 1, 1)}
    assert engine_place(ParallelConfig(), 0, machine) == Place()
    assert engine_place(ParallelConfig(**of), 1, machine) == Place(cores=SOCKETS[1], nodes=(1,), strict=True)
    assert engine_place(ParallelConfig(tensor_parallel_size=2, **of), 0, machine) == Place(cores=tuple(range(16)), nodes=(0, 1))
    assert engine_place(ParallelConfig(tensor_parallel_size=2, **of), 2, machine) == Place(cores=SOCKETS[1], nodes=(1,))
    assert not engine_place(ParallelConfig(distributed_executor_backend="mp", **of), 0, machine).strict


GPUS = [Gpu(0, "GPU-aa11", "0000:1b:00.0"), Gpu(1, "GPU-aa22", "0000:3b:00.0"), Gpu(2, "GPU-bb33", "0001:9b:00.0")]


@pytest.mark.parametrize(("setting", "indices"), [
    (None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-bb,1", [2, 1]), ("", []), ("0,7,1", [0]), ("-1", []), ("GPU-aa", []), ("1,1", [1]),
])  # fmt: skip
def test_visible_gpus_are_those_that_cuda_sees(setting: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in visible(GPUS, setting)] == indices


def test_the_node_of_a_gpu_stands_in_the_kernel_s_tree(tmp_path: Path) -> None:
    write(tmp_path / "0000:1b:00.0/numa_node", "1\n")
    write(tmp_path / "0000:3b:00.0/numa_node", "-1\n")
    assert [gpu.node(tmp_path) for gpu in GPUS] == [1, None, None]
    assert sysfs_address("00000001:9B:00.0") == "0001:9b:00.0"


def test_a_machine_without_the_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.host.nvml.LIBRARY", "libnvidia-ml-not-there.so")
    assert read_driver() is None


def test_a_worker_is_bound_as_its_flags_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    core = max(os.sched_getaffinity(0))
    asked = ParallelConfig(numa_bind=True, numa_bind_nodes=(0,), numa_bind_cpus=(f"{core},4095",))
    executor = ProcessExecutor([Workers("tests.engine.fake_worker:build", ("good",), places=numa_places(asked, [0]))])
    try:
        folder = Path(f"/proc/{executor.told[0]['pid']}")
        assert re.search(rf"^Cpus_allowed_list:\s*{core}$", (folder / "status").read_text(), re.MULTILINE)
        assert {line.split()[1] for line in (folder / "numa_maps").read_text().splitlines()} == {"bind:0"}
    finally:
        executor.close()
