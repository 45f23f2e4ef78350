"""Trees like /sys/devices/system, of machines that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.host import cores, cpu_places
from octavo.host.topology import Topology

SETTINGS = ("OMP_NUM_THREADS", "CPU_VISIBLE_MEMORY_NODES", "OCTAVO_CPU_OMP_THREADS_BIND", "OCTAVO_CPU_NUM_OF_RESERVED_CPU")


def machine(root: Path, nodes: dict[int, str], siblings: dict[int, str] | None = None) -> Topology:
    for node, cpus in nodes.items():
        write(root / f"node/node{node}/cpulist", f"{cpus}\n")
    for cpu, group in (siblings or {}).items():
        write(root / f"cpu/cpu{cpu}/topology/thread_siblings_list", f"{group}\n")
    return Topology.read(root)


def two_sockets(root: Path) -> Topology:
    """Two nodes of four cores with two threads each, as Linux numbers them: 0-3 and 8-11 on node 0, siblings 8 apart."""
    return machine(root, {0: "0-3,8-11", 1: "4-7,12-15", 2: ""}, {cpu: f"{cpu % 8},{cpu % 8 + 8}" for cpu in range(16)})


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def pretend(monkeypatch: pytest.MonkeyPatch, allowed: set[int], quota: float | None = None, **settings: str) -> None:
    """Let this process be allowed these CPUs and that quota, under these settings and no others."""
    for module in (cores, cpu_places):
        monkeypatch.setattr(module, "allowed_cores", lambda: frozenset(allowed))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.replace("OCTAVO_", "VLLM_"), raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
