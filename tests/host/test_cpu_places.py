"""Which cores and which memory workers on the CPU get, on machines of many kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo import env
from octavo.host.cpu_places import cpu_places
from octavo.host.place import Place
from octavo.host.topology import Topology
from tests.host.trees import machine, pretend, two_sockets

ONE_NODE = Topology({0: (2, 3, 8, 9)}, {})


@pytest.mark.parametrize(("settings", "place"), [
    ({}, Place(3, (2, 3, 8))),
    ({"OMP_NUM_THREADS": "7"}, Place(7)),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "0"}, Place(4, (2, 3, 8, 9))),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "2"}, Place(2, (2, 3))),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "9"}, Place(1, (2,))),
    ({"OCTAVO_CPU_NUM_OF_RESERVED_CPU": "1", "OCTAVO_CPU_OMP_THREADS_BIND": "nobind"}, Place(4)),
    ({"OCTAVO_CPU_OMP_THREADS_BIND": "2-3,8"}, Place(3, (2, 3, 8), pinned=True)),
    ({"OCTAVO_CPU_OMP_THREADS_BIND": "9|2", "OMP_NUM_THREADS": "7"}, Place(1, (9,), pinned=True)),
    ({"VLLM_CPU_OMP_THREADS_BIND": "9"}, Place(1, (9,), pinned=True)),
])  # fmt: skip
def test_the_settings_decide(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], place: Place) -> None:
    pretend(monkeypatch, {2, 3, 8, 9}, **settings)
    assert cpu_places(1, ONE_NODE) == [place]


def test_two_cores_are_both_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {0, 1})
    assert cpu_places(1, Topology({0: (0, 1)}, {})) == [Place(2, (0, 1))]
    assert cpu_places(3, Topology({0: (0, 1)}, {})) == [Place(1)] * 3


def test_workers_share_a_node_and_its_last_core_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, set(range(8)))
    assert cpu_places(2, Topology({0: tuple(range(8))}, {})) == [Place(4, (0, 1, 2, 3)), Place(3, (4, 5, 6))]


def test_each_socket_gets_a_worker_on_its_physical_cores_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, set(range(16)))
    assert cpu_places(2, two_sockets(tmp_path)) == [Place(4, (0, 1, 2, 3), nodes=(0,)), Place(3, (4, 5, 6), nodes=(1,))]


def test_one_worker_takes_both_sockets_and_their_memory_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, set(range(16)))
    assert cpu_places(1, two_sockets(tmp_path)) == [Place(7, (0, 1, 2, 3, 4, 5, 6), nodes=(0, 1))]


def test_visible_nodes_in_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    two = two_sockets(tmp_path)
    pretend(monkeypatch, set(range(16)), CPU_VISIBLE_MEMORY_NODES="1,0", OCTAVO_CPU_NUM_OF_RESERVED_CPU="0")
    assert [place.nodes for place in cpu_places(2, two)] == [(1,), (0,)]
    pretend(monkeypatch, set(range(16)), CPU_VISIBLE_MEMORY_NODES="1")
    assert cpu_places(1, two) == [Place(3, (4, 5, 6), nodes=(1,))]
    pretend(monkeypatch, set(range(16)), CPU_VISIBLE_MEMORY_NODES="1,7")
    with pytest.raises(env.BadEnvironment, match="CPU_VISIBLE_MEMORY_NODES = '1,7' is not possible: there is no node 7; nodes: 0-1"):
        cpu_places(1, two)
    pretend(monkeypatch, {0, 1}, CPU_VISIBLE_MEMORY_NODES="1")
    with pytest.raises(env.BadEnvironment, match="no core of these nodes may be used here; allowed: 0-1, on nodes 0"):
        cpu_places(1, two)
    pretend(monkeypatch, {0, 1}, CPU_VISIBLE_MEMORY_NODES="one")
    with pytest.raises(env.BadEnvironment, match="'one' is neither a number nor a range"):
        cpu_places(1, two)


def test_the_cpuset_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, {5, 6, 13, 14})  # two physical cores of node 1
    assert cpu_places(1, two_sockets(tmp_path)) == [Place(2, (5, 6), nodes=(1,))]


def test_under_a_quota_threads_are_counted_and_not_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    two = two_sockets(tmp_path)
    pretend(monkeypatch, set(range(16)), quota=4.0)
    assert cpu_places(1, two) == [Place(3)]
    assert cpu_places(2, two) == [Place(1)] * 2
    pretend(monkeypatch, set(range(16)), quota=8.0)
    assert cpu_places(1, two)[0].num_threads == 7


def test_a_list_is_cut_to_what_is_allowed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pretend(monkeypatch, {2, 3, 8, 9}, OCTAVO_CPU_OMP_THREADS_BIND="0-31")
    assert cpu_places(1, ONE_NODE) == [Place(4, (2, 3, 8, 9), pinned=True)]
    assert "cores 0-1,4-7,10-31 may not be used here; worker 0 has 2-3,8-9" in caplog.text
    pretend(monkeypatch, {2, 3, 8, 9}, OCTAVO_CPU_OMP_THREADS_BIND="2|0-1")
    with pytest.raises(env.BadEnvironment, match="of worker 1's cores 0-1 none may be used here; allowed: 2-3,8-9"):
        cpu_places(2, ONE_NODE)


def test_lists_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, set(range(16)), OCTAVO_CPU_OMP_THREADS_BIND="0-2|4,12")
    two = two_sockets(tmp_path)
    assert cpu_places(2, two) == [Place(3, (0, 1, 2), pinned=True, nodes=(0,)), Place(2, (4, 12), pinned=True, nodes=(1,))]
    with pytest.raises(env.BadEnvironment, match=r"there is no list for worker 2 of 3; separate the lists of workers with \|"):
        cpu_places(3, two)
    pretend(monkeypatch, set(range(16)), OCTAVO_CPU_OMP_THREADS_BIND="0-2|4-")
    with pytest.raises(env.BadEnvironment, match="'4-' is neither a number nor a range such as 0-3; use auto, nobind, or lists"):
        cpu_places(2, two)


def test_more_cores_cannot_stay_free_than_there_are(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pretend(monkeypatch, {2, 3, 8, 9}, OCTAVO_CPU_NUM_OF_RESERVED_CPU="3")
    assert cpu_places(2, ONE_NODE) == [Place(1, (2,)), Place(1, (8,))]
    assert "of 4 cores only 2 can stay free of 2 workers" in caplog.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(data=st.data())
def test_workers_never_share_a_core_nor_use_what_is_not_allowed(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))  # node of each CPU
    nodes = {node: tuple(cpu for cpu, own in enumerate(owner) if own == node) for node in sorted(set(owner))}
    threads = data.draw(st.sampled_from([1, 2]))
    cut = [cpus[i : i + threads] for cpus in nodes.values() for i in range(0, len(cpus), threads)]
    siblings = {cpu: group for group in cut for cpu in group}
    allowed = set(data.draw(st.lists(st.integers(0, len(owner) - 1), min_size=1, unique=True)))
    num_workers, quota = data.draw(st.integers(1, 6)), data.draw(st.none() | st.floats(0.1, 30))
    pretend(monkeypatch, allowed, quota)
    topology = Topology(nodes, siblings)
    places = cpu_places(num_workers, topology)
    cores = [core for place in places for core in place.cores]
    assert len(places) == num_workers
    assert len(set(cores)) == len(cores)
    assert allowed.issuperset(cores)
    assert len(topology.physical(cores)) == len(cores)
    assert all(place.num_threads >= 1 for place in places)
    if sum(place.num_threads for place in places) > num_workers:
        physical = len(topology.physical(allowed))
        limit = physical if quota is None else min(physical, max(1, int(quota + 0.5)))
        assert sum(place.num_threads for place in places) <= limit - (limit > 2)


def test_a_machine_that_tells_nothing_is_one_node(tmp_path: Path) -> None:
    read = Topology.read(tmp_path)
    assert list(read.nodes) == [0]
    assert machine(tmp_path / "one", {0: "0-1"}).nodes == {0: (0, 1)}
