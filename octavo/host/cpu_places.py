"""Where the workers of a machine compute when they compute on its CPU: by affinity, quota, nodes of memory and the settings.

`auto` gives each worker cores of its own, one thread for each physical core, node by node, and leaves some for other processes; a list pins
threads one by one. Where there is less time than cores (a quota), threads are only counted: other containers would choose the same cores.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from octavo import env
from octavo.host.cores import allowed_cores, as_list, usable_cores
from octavo.host.place import Place
from octavo.host.topology import Topology

log = logging.getLogger(__name__)


@functools.cache
def own_place() -> Place:
    """Of the one worker that runs in this process; settled when first asked for. Raises `BadEnvironment`."""
    return cpu_places(1)[0]


def cpu_places(num_workers: int, machine: Topology | None = None) -> list[Place]:
    """A place for each worker of this machine, in the order of their ranks.

    A list of cores counts over `OMP_NUM_THREADS`, that over `auto` and `nobind`. Raises `BadEnvironment` for what cannot be.
    """
    machine = machine or Topology.read()
    bind, count = env.CPU_OMP_THREADS_BIND.get(), env.OMP_NUM_THREADS.get()
    if bind not in ("auto", "nobind"):
        return _listed(bind, num_workers, machine)
    if count:
        return [Place(count)] * num_workers
    return _automatic(num_workers, machine) if bind == "auto" else [Place(max(1, usable_cores() // num_workers))] * num_workers


def _automatic(num_workers: int, machine: Topology) -> list[Place]:
    nodes = _visible_nodes(machine)
    cores = sum(map(len, nodes.values()))
    time = min(cores, usable_cores())
    reserved = _reserved(time, num_workers)
    shares = _shares(list(nodes.values()), num_workers)
    if time < cores or not all(shares):
        return [Place(max(1, (time - reserved) // num_workers))] * num_workers
    for _ in range(reserved):  # from the end of the longest share, of equals the last
        max(reversed(shares), key=len).pop()
    several = len(machine.nodes) > 1
    return [Place(len(share), tuple(share), nodes=machine.nodes_of(share) if several else ()) for share in shares]


def _visible_nodes(machine: Topology) -> dict[int, tuple[int, ...]]:
    """The physical cores that may be used, by node, in the order asked for."""
    asked = env.CPU_VISIBLE_MEMORY_NODES.get()
    unknown = [node for node in asked if node not in machine.nodes]
    if unknown:
        raise _bad(env.CPU_VISIBLE_MEMORY_NODES, as_list(asked), f"there is no node {unknown[0]}; nodes: {as_list(machine.nodes)}")
    allowed = allowed_cores()
    found = {node: machine.physical(allowed.intersection(machine.nodes[node])) for node in asked or machine.nodes}
    found = {node: cores for node, cores in found.items() if cores}
    if not found:
        why = f"no core of these nodes may be used here; allowed: {as_list(allowed)}, on nodes {as_list(machine.nodes_of(allowed))}"
        raise _bad(env.CPU_VISIBLE_MEMORY_NODES, as_list(asked), why)
    return found


def _reserved(cores: int, num_workers: int) -> int:
    """How many cores stay free; unless asked otherwise one, for the process that talks HTTP, where there are more than two."""
    asked = env.CPU_NUM_OF_RESERVED_CPU.get()
    wanted = (1 if cores > 2 else 0) if asked is None else asked
    room = max(0, cores - num_workers)
    if asked is not None and wanted > room:
        name = env.CPU_NUM_OF_RESERVED_CPU.name
        log.warning("%s = %d: of %d cores only %d can stay free of %d workers", name, asked, cores, room, num_workers)
    return min(wanted, room)


def _shares(nodes: Sequence[Sequence[int]], num_workers: int) -> list[list[int]]:
    """Cores for each worker: whole nodes where there are enough, else an equal part of one."""
    if num_workers <= len(nodes):
        bounds = [worker * len(nodes) // num_workers for worker in range(num_workers + 1)]
        return [[core for node in nodes[first:end] for core in node] for first, end in pairwise(bounds)]
    shares: list[list[int]] = []
    for number, cores in enumerate(nodes):
        parts = [worker for worker in range(num_workers) if worker * len(nodes) // num_workers == number]
        shares += [list(cores[part * len(cores) // len(parts) : (part + 1) * len(cores) // len(parts)]) for part in range(len(parts))]
    return shares


def _listed(text: str, num_workers: int, machine: Topology) -> list[Place]:
    lists = text.split("|")
    if len(lists) < num_workers:
        why = f"there is no list for worker {len(lists)} of {num_workers}; separate the lists of workers with |"
        raise _bad(env.CPU_OMP_THREADS_BIND, text, why)
    several = len(machine.nodes) > 1
    chosen = [_cores_here(text, worker, lists[worker]) for worker in range(num_workers)]
    return [Place(len(cores), cores, pinned=True, nodes=machine.nodes_of(cores) if several else ()) for cores in chosen]


def _cores_here(text: str, worker: int, one: str) -> tuple[int, ...]:
    """Those cores of a worker's list that may be used."""
    variable, allowed = env.CPU_OMP_THREADS_BIND, allowed_cores()
    try:
        asked = env.read_list(one)
    except ValueError as error:
        raise _bad(variable, text, f"{error}; use auto, nobind, or lists of cores such as 0-3,8 (one a worker, separated by |)") from None
    cores = tuple(core for core in asked if core in allowed)
    absent = as_list(set(asked).difference(cores))
    if not cores:
        raise _bad(variable, text, f"of worker {worker}'s cores {absent} none may be used here; allowed: {as_list(allowed)}")
    if absent:
        log.warning("%s = %s: cores %s may not be used here; worker %d has %s", variable.name, text, absent, worker, as_list(cores))
    return cores


def _bad(variable: env.Variable[Any], text: str, why: str) -> env.BadEnvironment:
    return env.BadEnvironment(f"{variable.given_as() or variable.name} = {text!r} is not possible: {why}")
