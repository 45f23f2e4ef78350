"""Nodes of memory and the cores beside them, as the kernel describes them in /sys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo import env
from octavo.host.cores import allowed_cores

SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True)
class Topology:
    """A machine's nodes (NUMA) and physical cores; logical CPUs by number."""

    nodes: Mapping[int, tuple[int, ...]]  # node -> its logical CPUs; nodes without any are left out
    siblings: Mapping[int, tuple[int, ...]]  # logical CPU -> all of its physical core

    @staticmethod
    def read(root: Path = SYSTEM) -> Topology:
        """Of this machine; one node of all allowed CPUs where the kernel tells nothing."""
        nodes = {int(path.parent.name[4:]): _list(path) for path in root.glob("node/node[0-9]*/cpulist")}
        siblings = {int(path.parts[-3][3:]): _list(path) for path in root.glob("cpu/cpu[0-9]*/topology/thread_siblings_list")}
        return Topology({node: nodes[node] for node in sorted(nodes) if nodes[node]} or {0: tuple(sorted(allowed_cores()))}, siblings)

    def physical(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """One logical CPU for each physical core among these, in order."""
        first = {min(self.siblings.get(cpu) or (cpu,)): cpu for cpu in sorted(set(cpus), reverse=True)}
        return tuple(sorted(first.values()))

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """The nodes that these CPUs are on."""
        wanted = set(cpus)
        return tuple(node for node, own in self.nodes.items() if wanted.intersection(own))


def _list(path: Path) -> tuple[int, ...]:
    text = path.read_text().strip()
    return env.read_list(text) if text else ()
