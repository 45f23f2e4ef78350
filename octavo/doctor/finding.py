"""What a check may find, and the facts that checks look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.host.nvml import Driver, Gpu
from octavo.host.topology import Topology

Severity = Literal["ok", "note", "warning", "error"]  # a note can be ignored; with an error something asked for will not work


@dataclass(frozen=True)
class Finding:
    """One fact, how bad it is, and what to do about it."""

    severity: Severity
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Facts:
    """A machine, the settings it is meant to run, and the environment. Read once, so that every check sees the same."""

    machine: Topology
    allowed: frozenset[int]  # logical CPUs
    quota: float | None
    total_bytes: int  # of host memory
    free_bytes: int
    shm_bytes: int | None  # of /dev/shm
    memlock_bytes: int  # -1: no limit
    num_files: int  # open at once; -1: no limit
    driver: Driver | None
    gpus: tuple[Gpu, ...]  # those that may be used
    gpu_nodes: tuple[int | None, ...]
    infiniband: tuple[str, ...]
    peer_memory: bool  # whether network cards may read GPU memory
    torch_cuda: str | None  # the CUDA that torch was built with
    torch_gpus: int
    versions: Mapping[str, str]
    cache_root: Path
    environment: Mapping[str, str]
    host: str
    port: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    hosts: int = 1
    numa_bind: bool = False

    @property
    def num_workers(self) -> int:
        """On this host."""
        return max(1, self.tensor * self.pipeline * self.data // self.hosts)


Check = Callable[[Facts], Finding | None]  # None: it does not apply here


def ok(text: str) -> Finding:
    return Finding("ok", text)
