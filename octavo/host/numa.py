"""Binding what drives GPUs to the cores and the memory beside them: --numa-bind and its lists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo import env
from octavo.config.fields import ConfigError
from octavo.config.parallel import ParallelConfig
from octavo.host.cores import allowed_cores, as_list
from octavo.host.nvml import read_driver, visible
from octavo.host.place import Place
from octavo.host.topology import Topology

T = TypeVar("T")
log = logging.getLogger(__name__)


def gpu_node(device: int) -> int | None:
    """The node that a GPU is attached to, by CUDA's number; None where it is not known."""
    driver = read_driver()
    seen = visible(driver.gpus, env.CUDA_VISIBLE_DEVICES.get()) if driver else []
    return seen[device].node() if device < len(seen) else None


def numa_places(
    asked: ParallelConfig, devices: Sequence[int], machine: Topology | None = None, node_of: Callable[[int], int | None] = gpu_node
) -> list[Place]:
    """A place for the process of each of these GPUs, bound strictly, as numactl --cpunodebind or --physcpubind with --membind would.

    Raises `ConfigError` for a node or a core that is not there, and where a node is neither given nor known.
    """
    machine = machine or Topology.read()
    return [_place(asked, device, machine, node_of) for device in devices]


def engine_place(asked: ParallelConfig, first_device: int = 0, machine: Topology | None = None) -> Place:
    """Of the process of an engine whose GPUs start with this one: that of its worker, or, where workers are processes of their own, all
    cores of their nodes."""
    if not asked.numa_bind:
        return Place()
    machine = machine or Topology.read()
    workers = numa_places(asked, range(first_device, first_device + asked.world_size), machine)
    if asked.world_size == 1 and asked.distributed_executor_backend != "mp":
        return workers[0]
    nodes = tuple(dict.fromkeys(node for place in workers for node in place.nodes))
    cores = {core for node in nodes for core in machine.nodes[node]}.union(*(place.cores for place in workers)) & allowed_cores()
    return Place(cores=tuple(sorted(cores)), nodes=nodes)


def _place(asked: ParallelConfig, device: int, machine: Topology, node_of: Callable[[int], int | None]) -> Place:
    node = _node(asked, device, machine, node_of)
    allowed = allowed_cores()
    if not asked.numa_bind_cpus:
        cores = allowed.intersection(machine.nodes[node])
        if not cores:
            raise ConfigError(
                "numa_bind_nodes", node, f"none of its cores {as_list(machine.nodes[node])} may be used here; allowed: {as_list(allowed)}"
            )
        return Place(cores=tuple(sorted(cores)), nodes=(node,), strict=True)
    text = _entry("numa_bind_cpus", asked.numa_bind_cpus, device)
    wanted = env.read_list(text)
    cores = tuple(core for core in wanted if core in allowed)
    if not cores:
        raise ConfigError("numa_bind_cpus", text, f"none of these cores may be used here; allowed: {as_list(allowed)}")
    if len(cores) < len(wanted):
        absent = as_list(set(wanted).difference(cores))
        log.warning("--numa-bind-cpus %s: cores %s may not be used here; GPU %d has %s", text, absent, device, as_list(cores))
    return Place(cores=cores, nodes=(node,), strict=True)


def _node(asked: ParallelConfig, device: int, machine: Topology, node_of: Callable[[int], int | None]) -> int:
    if asked.numa_bind_nodes:
        node = _entry("numa_bind_nodes", asked.numa_bind_nodes, device)
        if node not in machine.nodes:
            raise ConfigError("numa_bind_nodes", node, f"this machine has nodes {as_list(machine.nodes)}")
        return node
    found = node_of(device)
    if found is not None and found in machine.nodes:
        return found
    if len(machine.nodes) == 1:
        return next(iter(machine.nodes))
    why = f"the system does not say which node GPU {device} is attached to; give one for each GPU: --numa-bind-nodes 0 0 1 1"
    raise ConfigError("numa_bind", True, why)


def _entry(name: str, entries: Sequence[T], device: int) -> T:
    if device >= len(entries):
        raise ConfigError(name, " ".join(map(str, entries)), f"GPU {device} has no entry; give one for each visible GPU")
    return entries[device]
