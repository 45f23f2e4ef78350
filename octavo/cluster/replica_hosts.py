"""Engines on other hosts behind one API: --data-parallel-size-local on the first host, --headless --data-parallel-start-rank on the others.

An agent there starts the engines and hands on what they say of their start and their end; requests and news go between the front and each
engine over a connection of their own, the same as on one host.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from octavo.cluster.agent import come, receive, task_from, verdict
from octavo.cluster.far import END, REPLICA_FLAGS, FarHost, gather, listen
from octavo.cluster.mp_hosts import flags_of
from octavo.config.engine import EngineConfig
from octavo.config.parallel import ParallelConfig, Replica
from octavo.engine.executor import ExecutorDead
from octavo.engine.process import Child, spawn
from octavo.host.numa import engine_place

log = logging.getLogger(__name__)
BUILD_REPLICA = "octavo.engine.build:build_replica"


class FarEngine:
    """An engine's process on another host, as `octavo.engine.process.Child` is one on this."""

    pid = 0  # of this host: none

    def __init__(self, host: FarHost, replica: Replica) -> None:
        """Start it."""
        self._host = host
        self.status_fd, self._pipe = os.pipe()
        host.begin(replica)
        threading.Thread(target=self._hand_on, name=f"engine {host.number}", daemon=True).start()

    def stop(self, why: str | None = None) -> None:
        if not self._host.link.closed:
            with suppress(OSError), socket.socket(fileno=os.dup(self._host.link.fileno())) as plain:
                self._host.link.send_bytes(END + (why or "").encode())
                plain.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        self.stop()
        self._host.link.close()

    def end(self) -> str:
        """Where it ended."""
        return f"its {self._host}"

    def _hand_on(self) -> None:
        """What the engine says there, as if it were said here."""
        with suppress(BrokenPipeError):
            try:
                while said := self._host.link.recv_bytes():
                    os.write(self._pipe, said)
            except (EOFError, OSError) as error:
                os.write(self._pipe, _error(f"the {self._host} is lost: {str(error) or 'its process has ended'}"))
        os.close(self._pipe)


def _error(text: str) -> bytes:
    """What a process would say that ended so without a word."""
    return json.dumps({"kind": "error", "at_s": 0.0, "error": text, "consequence": False}).encode() + b"\n"


def far_engines(parallel: ParallelConfig, replicas: Sequence[Replica]) -> list[FarEngine]:
    """Wait until the hosts of these replicas have come, and start them. Raises `ConfigError` and `ExecutorDead`."""
    if not replicas:
        return []
    with listen(parallel.data_parallel_address, parallel.data_parallel_rpc_port, len(replicas), REPLICA_FLAGS) as listener:
        hosts = gather(listener, [one.rank for one in replicas], flags_of(parallel), kind="engine")
    return [FarEngine(host, replica) for host, replica in zip(hosts, replicas, strict=True)]


@dataclass
class _Running:
    """An engine of this host and the connection to the front that wants it."""

    link: Connection
    child: Child
    said_error: bool = False

    def hand_on(self) -> bool:
        """Tell the front what the engine says; whether it goes on."""
        said = os.read(self.child.status_fd, 65536)
        goes_on = bool(said)
        self.said_error = self.said_error or b'"kind": "error"' in said
        if not goes_on and (end := self.child.end()) != "code 0" and not self.said_error:
            said, self.said_error = _error(f"the engine process ended with {end} on host {platform.node()}"), True
        with suppress(OSError):
            if said:
                self.link.send_bytes(said)
            if not goes_on:
                self.link.send_bytes(b"")  # that was the last
        return goes_on


def serve_replicas(asked: EngineConfig) -> None:
    """Run this host's replicas until the first host ends. Raises `ExecutorDead` with the first error of any, and `NobodyThere`."""
    parallel = asked.parallel
    address = (parallel.data_parallel_address, parallel.data_parallel_rpc_port)
    came = {rank: come(address, rank, flags_of(parallel)) for rank in parallel.replicas_here}
    engines: dict[int, _Running] = {}
    try:
        for local, (rank, (link, own_address)) in enumerate(came.items()):
            args = (asked, False, replace(task_from(link), local=local))
            place = engine_place(parallel, local * parallel.world_size)
            child = spawn("octavo.engine.server:run_engine", f"tcp://{own_address}:*", BUILD_REPLICA, args, place=place)
            engines[rank] = _Running(link, child)
        _look_after(engines)
    finally:
        for engine in engines.values():
            engine.child.kill()


def _look_after(engines: Mapping[int, _Running]) -> None:
    running = dict(engines)
    while running:
        ready = wait([door for one in running.values() for door in (one.link, one.child.status_fd)])
        for rank, one in list(running.items()):
            if one.link in ready:
                raise ExecutorDead(receive(one.link)[1:].decode() or "the first host has ended")
            if one.child.status_fd in ready and not one.hand_on():
                del running[rank]
                if one.said_error:
                    raise ExecutorDead(verdict(one.link) or f"engine {rank} has ended")
