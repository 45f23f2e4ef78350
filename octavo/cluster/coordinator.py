"""Where replicas that share experts speak to each other before each step: a process of its own, to which each holds one connection.

A round begins with the first word of a rank; those that are silent are called to it, and when all have spoken all hear what all said. So a
rank waits only in a round to which every rank comes, and whoever leaves takes the others along, by name.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from octavo.cluster.far import HELLO_S, PATIENCE_S, REPLICA_FLAGS, listen
from octavo.config.parallel import ParallelConfig, Replica
from octavo.core.lockstep import Intent, agree
from octavo.engine.executor import ExecutorDead
from octavo.engine.process import Child, Status, spawn
from octavo.host.network import NobodyThere, connect, lasting

INTENT = struct.Struct("<Q?")
HEARD_S = 3.0  # within which the coordinator hears of a rank that has left
CALL, ROUND, LOST = b"C", b"R", b"L"  # what a message of the coordinator begins with


def start_coordinator(num_ranks: int, host: str = "127.0.0.1", port: int = 0) -> tuple[Child, tuple[str, int]]:
    """The process, and the address at which ranks find it: `port`, or any free one. Raises `ConfigError`."""
    with listen(host, port, num_ranks, REPLICA_FLAGS) as listener:
        child = spawn("octavo.cluster.coordinator:run_coordinator", listener.fileno(), num_ranks, fds=(listener.fileno(),))
        return child, listener.getsockname()[:2]


def all_replicas(parallel: ParallelConfig) -> tuple[list[Replica], list[Replica], Child | None]:
    """Replicas of this host, those of others that belong to the same API, and the coordinator's process where it is to run here.

    Where each host has an API of its own, the port by which hosts meet is the coordinator's. Raises `ConfigError`.
    """
    child, address, here, there = None, None, parallel.replicas_here, replicas_there(parallel)
    if parallel.lock_step:
        address = (parallel.data_parallel_address, parallel.data_parallel_rpc_port)
        if here.start == 0:
            apart = len(here) < parallel.data_parallel_size and not there
            host = "127.0.0.1" if len(here) == parallel.data_parallel_size else parallel.data_parallel_address
            child, address = start_coordinator(parallel.data_parallel_size, host, parallel.data_parallel_rpc_port if apart else 0)
    return [Replica(rank, local, address) for local, rank in enumerate(here)], [Replica(rank, 0, address) for rank in there], child


def replicas_there(parallel: ParallelConfig) -> range:
    """Those on other hosts that the API of this one has behind it: none where each host, or each replica, has an API of its own."""
    hybrid = parallel.data_parallel_hybrid_lb or parallel.data_parallel_start_rank
    external = parallel.data_parallel_external_lb or parallel.data_parallel_rank is not None
    return range(0) if hybrid or external else range(parallel.replicas_here.stop, parallel.data_parallel_size)


def run_coordinator(status: Status, fd: int, num_ranks: int) -> None:
    """The coordinator's process: ends when a rank has left."""
    links = _gather(socket.socket(fileno=fd), num_ranks)
    if links is None:
        return
    said: dict[int, bytes] = {}
    running = False
    while True:
        for link in wait(list(links.values())):
            rank = next(number for number, one in links.items() if one is link)
            try:
                said[rank] = links[rank].recv_bytes()
            except (EOFError, OSError):
                _send(links, _left(rank), [other for other in links if other != rank])
                return
        if said and not running:
            running = True
            _send(links, CALL, [rank for rank in links if rank not in said])
        if len(said) == num_ranks:
            _send(links, ROUND + b"".join(said[rank] for rank in range(num_ranks)), list(links))
            running = agree([Intent(*INTENT.unpack(word)) for word in said.values()]) is not None
            said.clear()


def _left(rank: int) -> bytes:
    return LOST + f"engine {rank} has ended, and its experts with it".encode()


def _gather(listener: socket.socket, num_ranks: int) -> dict[int, Connection] | None:
    """Wait until all have come; then each is told what all brought along. None if one leaves before, or some do not come."""
    links: dict[int, Connection] = {}
    brought: dict[int, Any] = {}
    end_s = time.monotonic() + PATIENCE_S
    while missing := [rank for rank in range(num_ranks) if rank not in links]:
        ready = wait([listener, *links.values()], max(0.0, end_s - time.monotonic()))
        if listener not in ready:
            left = next((rank for rank, link in links.items() if link in ready), None)  # it has nothing to say yet
            why = f"engine {', '.join(map(str, missing))} did not come within {PATIENCE_S:g} s".encode()
            _send(links, LOST + why if left is None else _left(left), [rank for rank in links if rank != left])
            return None
        link = _connection(listener.accept()[0])
        try:
            rank, their_size, brought_by_it = json.loads(link.recv_bytes(1 << 20)) if link.poll(HELLO_S) else (0, 0, None)
        except (EOFError, OSError, ValueError, TypeError):  # it left, or was somebody else
            continue
        if rank not in missing or their_size != num_ranks:
            why = f"the coordinator waits for engines {missing} of {num_ranks}; this one came as engine {rank} of {their_size}"
            _send({rank: link}, LOST + why.encode(), [rank])
            continue
        links[rank], brought[rank] = link, brought_by_it
    _send(links, json.dumps([brought[rank] for rank in range(num_ranks)]).encode(), list(links))
    return links


def _send(links: dict[int, Connection], message: bytes, ranks: Sequence[int]) -> None:
    for rank in ranks:
        with contextlib.suppress(OSError):  # it has left, which its link will say
            links[rank].send_bytes(message)


def _connection(plain: socket.socket) -> Connection:
    return Connection(lasting(plain).detach())


class Seat:
    """One rank's end of its connection."""

    def __init__(self, address: tuple[str, int], rank: int, num_ranks: int, brings: Any) -> None:
        """Connect, and wait until all ranks have: `brought` is then what each brings, by rank. Raises `ExecutorDead`."""
        try:
            plain = connect(*address, PATIENCE_S)
        except NobodyThere as error:
            raise ExecutorDead(f"the coordinator of replicas is not there: {error}") from None
        self.own_address: str = plain.getsockname()[0]
        self._link = _connection(plain)
        self._link.send_bytes(json.dumps([rank, num_ranks, brings]).encode())
        self.brought: list[Any] = json.loads(self._receive())

    @property
    def fd(self) -> int:
        return self._link.fileno()

    def called(self) -> bool:
        """Whether another rank has begun a round, in which this one must speak. Raises `ExecutorDead` if a rank has left."""
        while self._link.poll():
            if self._receive()[:1] == CALL:
                return True
        return False

    def speak(self, intent: Intent) -> list[Intent]:
        """What all ranks say in this round, by rank. Raises `ExecutorDead` if a rank has left."""
        try:
            self._link.send_bytes(INTENT.pack(intent.num_tokens, intent.graph))
        except OSError:
            raise ExecutorDead("the coordinator has ended", consequence=True) from None
        while True:
            message = self._receive()
            if message[:1] == ROUND:
                return [Intent(*words) for words in INTENT.iter_unpack(message[1:])]

    def lost(self) -> str | None:
        """Which rank has left, as soon as the coordinator has heard of it; None if that is none."""
        try:
            while self._link.poll(HEARD_S):
                self._receive()
        except ExecutorDead as word:
            return str(word)
        return None

    def close(self) -> None:
        self._link.close()

    def _receive(self) -> bytes:
        try:
            message = self._link.recv_bytes()
        except (EOFError, OSError):
            raise ExecutorDead("the coordinator has ended", consequence=True) from None
        if message[:1] == LOST:
            raise ExecutorDead(message[1:].decode(), consequence=True)
        return message
