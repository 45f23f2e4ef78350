"""Which cores the team of threads runs on: by affinity, quota and the settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from octavo import env

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cores:
    """Threads of a team; with `pinned`, thread i stays on pinned[i]."""

    num_threads: int
    pinned: tuple[int, ...] = ()


def allowed_cores() -> frozenset[int]:
    """Cores that the system lets this process use."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(range(os.cpu_count() or 1))


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many of them, by the quota of the control group as well, rounded up."""
    cores = len(allowed_cores())
    try:
        quota, period = cgroup.read_text().split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def choose_cores(rank: int = 0) -> Cores:
    """What the environment asks for, for this worker of the machine. Raises `BadEnvironment` for a list that cannot be.

    `OMP_NUM_THREADS` counts where it is set; else `OCTAVO_CPU_OMP_THREADS_BIND`: a list pins, `auto` leaves the reserved cores free,
    `nobind` takes all.
    """
    if count := env.OMP_NUM_THREADS.get():
        return Cores(count)
    bind = env.CPU_OMP_THREADS_BIND.get()
    if bind in ("auto", "nobind"):
        reserved = env.CPU_NUM_OF_RESERVED_CPU.get() if bind == "auto" else 0
        return Cores(max(1, usable_cores() - reserved))
    asked = listed_cores(bind, rank)
    cores = tuple(core for core in asked if core in allowed_cores())
    if not cores:
        raise _bad(bind, f"none of these cores may be used here; allowed: {_shown(allowed_cores())}")
    if len(cores) < len(asked):
        logger.warning("OCTAVO_CPU_OMP_THREADS_BIND = %s: only cores %s of it may be used here", bind, _shown(frozenset(cores)))
    return Cores(len(cores), cores)


def listed_cores(text: str, rank: int) -> tuple[int, ...]:
    """ "0-2,5|8-10" is (0, 1, 2, 5) for rank 0 and (8, 9, 10) for rank 1."""
    lists = text.split("|")
    if rank >= len(lists):
        raise _bad(text, f"there is no list for worker {rank}; separate the lists of workers with |")
    cores: list[int] = []
    for stretch in lists[rank].split(","):
        first, dash, last = stretch.strip().partition("-")
        if not first.isdigit() or not (last.isdigit() if dash else True) or (dash and int(last) < int(first)):
            raise _bad(text, "use auto, nobind, or lists of cores such as 0-3,8 (one a worker, separated by |)")
        cores += range(int(first), int(last if dash else first) + 1)
    return tuple(dict.fromkeys(cores))


def _bad(text: str, why: str) -> env.BadEnvironment:
    return env.BadEnvironment(f"OCTAVO_CPU_OMP_THREADS_BIND = {text!r} is not possible: {why}")


def _shown(cores: Set[int]) -> str:
    return ",".join(map(str, sorted(cores)))
