"""Where a process runs: its cores, and the nodes that its memory comes from.

A place is entered by the calling thread, and all that it starts afterwards inherits it. So a thread that enters a place and then starts a
process has bound that process before its interpreter runs, as numactl would, without needing it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from octavo import env
from octavo.host.cores import as_list

T = TypeVar("T")
PREFERRED, BIND, INTERLEAVE = 1, 2, 3  # linux/mempolicy.h
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237}  # numbers of the system call
MAX_NODES = 1024


class PlaceError(RuntimeError):
    """The system does not let a process be bound so."""


@dataclass(frozen=True)
class Place:
    """Of a process or of a team of threads. An empty field leaves things to the system."""

    num_threads: int = 0  # of its team on the CPU
    cores: tuple[int, ...] = ()
    pinned: bool = False  # thread i of the team stays on cores[i]
    nodes: tuple[int, ...] = ()  # of memory; several take turns, page by page
    strict: bool = False  # memory comes from these nodes or not at all

    def enter(self) -> None:
        """Bind the calling thread. Raises `PlaceError` where a strict place cannot be had; else memory then stays as the system has it."""
        if self.cores and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, self.cores)
            except OSError as error:
                raise PlaceError(f"cores {as_list(self.cores)} cannot be used: {error.strerror}") from None
        if self.nodes and (why := _take_memory_from(self.nodes, self.strict)) and self.strict:
            raise PlaceError(f"memory cannot be bound to node {as_list(self.nodes)}: {why}")

    def environment(self) -> dict[str, str] | None:
        """For a process of this place: that of this process, with the settings that say the same to the child; None: unchanged."""
        if not self.num_threads:
            return None
        return env.with_settings(
            OMP_NUM_THREADS=str(self.num_threads), OCTAVO_CPU_OMP_THREADS_BIND=as_list(self.cores) if self.pinned else "nobind"
        )

    def run(self, call: Callable[[], T]) -> T:
        """What `call` gives, made by a thread that has entered this place: so a process that it starts is bound."""
        made: list[T] = []
        raised: list[BaseException] = []

        def inside() -> None:
            try:
                self.enter()
                made.append(call())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=inside, name="place")
        thread.start()
        thread.join()
        if raised:
            raise raised[0]
        return made[0]

    def __str__(self) -> str:
        parts = [
            f"{self.num_threads} thread{'s' if self.num_threads > 1 else ''}" if self.num_threads else "",
            f"{'pinned to ' if self.pinned else 'on '}cores {as_list(self.cores)}" if self.cores else "",
            f"memory of node {as_list(self.nodes)}" if self.nodes else "",
        ]
        return ", ".join(filter(None, parts)) or "anywhere"


def _take_memory_from(nodes: tuple[int, ...], strict: bool) -> str:
    """Set the calling thread's memory policy; why not, where it cannot be."""
    number = SET_MEMPOLICY.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return f"not known how on {sys.platform} {platform.machine()}"
    mode = BIND if strict else INTERLEAVE if len(nodes) > 1 else PREFERRED
    words = (ctypes.c_ulong * (MAX_NODES // 64))()
    for node in nodes:
        words[node // 64] |= 1 << (node % 64)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), ctypes.c_long(mode), words, ctypes.c_ulong(MAX_NODES + 1)) == 0:
        return ""
    code = ctypes.get_errno()
    hint = "; a container needs the right to it (docker run --cap-add SYS_NICE)" if code == 1 else ""
    return f"{os.strerror(code)}{hint}"
