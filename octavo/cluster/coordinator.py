"""Where replicas that share experts speak to each other before each step: a process of its own, to which each holds one connection.

A round begins with the first word of a rank; those that are silent are called to it, and when all have spoken all hear what all said. So a
rank waits only in a round to which every rank comes, and whoever leaves takes the others along, by name.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from octavo.config.parallel import ParallelConfig, Replica
from octavo.core.lockstep import Intent, agree
from octavo.engine.executor import ExecutorDead
from octavo.engine.process import Child, Status, spawn

INTENT = struct.Struct("<Q?")
CALL, ROUND, LOST = b"C", b"R", b"L"  # what a message of the coordinator begins with


def start_coordinator(num_ranks: int, host: str = "127.0.0.1", port: int = 0) -> tuple[Child, tuple[str, int]]:
    """The process, and the address at which ranks find it: `port`, or any free one."""
    with socket.create_server((host, port), backlog=num_ranks) as listener:
        child = spawn("octavo.cluster.coordinator:run_coordinator", listener.fileno(), num_ranks, fds=(listener.fileno(),))
        return child, listener.getsockname()[:2]


def replicas_here(parallel: ParallelConfig) -> tuple[list[Replica], Child | None]:
    """All replicas, on this host, and the coordinator's process where they share experts."""
    child, address = start_coordinator(parallel.data_parallel_size) if parallel.lock_step else (None, None)
    return [Replica(number, number, address) for number in range(parallel.data_parallel_size)], child


def run_coordinator(status: Status, fd: int, num_ranks: int) -> None:
    """The coordinator's process: ends when a rank has left."""
    links = _gather(socket.socket(fileno=fd), num_ranks)
    said: dict[int, bytes] = {}
    running = False
    while True:
        for link in wait(list(links.values())):
            rank = next(number for number, one in links.items() if one is link)
            try:
                said[rank] = links[rank].recv_bytes()
            except (EOFError, OSError):
                _send(links, LOST + str(rank).encode(), [other for other in links if other != rank])
                return
        if said and not running:
            running = True
            _send(links, CALL, [rank for rank in links if rank not in said])
        if len(said) == num_ranks:
            _send(links, ROUND + b"".join(said[rank] for rank in range(num_ranks)), list(links))
            running = agree([Intent(*INTENT.unpack(word)) for word in said.values()]) is not None
            said.clear()


def _gather(listener: socket.socket, num_ranks: int) -> dict[int, Connection]:
    """Wait until all have come; then each is told what all brought along."""
    links: dict[int, Connection] = {}
    brought: dict[int, Any] = {}
    while len(links) < num_ranks:
        link = _connection(listener.accept()[0])
        try:
            rank, brought_by_it = json.loads(link.recv_bytes(1 << 20))
        except (EOFError, OSError, ValueError):  # it left, or was somebody else
            continue
        links[rank], brought[rank] = link, brought_by_it
    _send(links, json.dumps([brought[rank] for rank in range(num_ranks)]).encode(), list(links))
    return links


def _send(links: dict[int, Connection], message: bytes, ranks: Sequence[int]) -> None:
    for rank in ranks:
        with contextlib.suppress(OSError):  # it has left, which its link will say
            links[rank].send_bytes(message)


def _connection(plain: socket.socket) -> Connection:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setblocking(True)
    return Connection(plain.detach())


class Seat:
    """One rank's end of its connection."""

    def __init__(self, address: tuple[str, int], rank: int, brings: Any) -> None:
        """Connect, and wait until all ranks have: `brought` is then what each brings, by rank. Raises `ExecutorDead`."""
        try:
            self._link = _connection(socket.create_connection(address))
        except OSError as error:
            raise ExecutorDead(f"the coordinator at {address[0]}:{address[1]} does not answer: {error}") from None
        self._link.send_bytes(json.dumps([rank, brings]).encode())
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

    def close(self) -> None:
        self._link.close()

    def _receive(self) -> bytes:
        try:
            message = self._link.recv_bytes()
        except (EOFError, OSError):
            raise ExecutorDead("the coordinator has ended", consequence=True) from None
        if message[:1] == LOST:
            raise ExecutorDead(f"engine {message[1:].decode()} has ended, and its experts with it", consequence=True)
        return message
