"""Workers on another host, as the engine sees them: a connection to an agent there (`octavo.cluster.agent`), which starts them and relays.

The host comes to the engine and says in JSON who it is. What the engine gives it to run is pickled, since a host believes the engine that
it was told to go to. What hosts say is never unpickled: anybody may come.
"""

from __future__ import annotations

import json
import logging
import pickle
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.engine.executor import ExecutorDead, PartyLost
from octavo.engine.process import Word
from octavo.host.network import lasting
from octavo.parallel.meeting import Meeting
from octavo.plan.devices import Device

log = logging.getLogger(__name__)
BEGIN, PLAN, ASK, END = b"B", b"P", b"A", b"E"  # what a message of the engine begins with
READY, OUTCOME, PROGRESS, DEAD = b"R", b"O", b"S", b"D"  # and one of a host
HELLO_S = 5.0  # how long one that comes may take to say who it is
LOOK_S, TELL_S = 1.0, 30.0  # how often something is looked after, and told, while hosts are awaited
WORD_GRACE_S = 1.5  # after the first death: how long other hosts may take to say so
ANSWER_S = 3.0  # how long a host may take to say how far it is
HOST_FLAGS, REPLICA_FLAGS = ("master_addr", "master_port"), ("data_parallel_address", "data_parallel_rpc_port")  # where hosts come
PATIENCE_S = 600.0  # until a host that has not come is given up


@dataclass(frozen=True)
class Task:
    """What the workers of one replica are: decided by its engine, the same on every host."""

    settings: Resolved
    meeting: Meeting
    first_rank: int  # of the replica's ranks among those that meet


class FarHost:
    """The party of workers (`octavo.engine.processes.Party`) on another host."""

    def __init__(self, link: Connection, number: int, name: str, kind: str = "host") -> None:
        self.number, self.name, self.kind = number, name, kind
        self.told: list[Any] | None = None
        self.afterwards: Callable[[], None] = lambda: None  # once it is closed
        self.link = link
        self._word: Word | None = None
        self._progress: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.number} ({self.name})"

    @property
    def doors(self) -> Sequence[Any]:
        return [self.link]

    def begin(self, task: object) -> None:
        """Let it start its workers."""
        self._send(BEGIN + pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL))

    def tell(self, data: bytes) -> None:
        self._send(PLAN + data)

    def hear(self, ready: Collection[Any]) -> Sequence[bytes]:
        if self.link not in ready:
            return ()
        try:
            message = self.link.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost(str(error) or "its process has ended") from None
        kind, body = message[:1], message[1:]
        if kind == OUTCOME:
            return (body,)
        if kind == DEAD:
            self._word = Word(*json.loads(body))
            raise PartyLost
        if kind == READY:
            self.told = json.loads(body)
        elif kind == PROGRESS:
            self._progress = body.decode()
        return ()

    def word(self) -> Word | None:
        end_s = time.monotonic() + WORD_GRACE_S
        with suppress(PartyLost):
            while self._word is None and self.link.poll(max(0.0, end_s - time.monotonic())):
                self.hear([self.link])
        return self._word

    def progress(self) -> str:
        self._progress = None
        with suppress(PartyLost):
            self._send(ASK)
            end_s = time.monotonic() + ANSWER_S
            while self._progress is None and self.link.poll(max(0.0, end_s - time.monotonic())):
                self.hear([self.link])
        return self._progress or f"on {self}: no answer"

    def close(self, why: str | None = None) -> None:
        if not self.link.closed:
            with suppress(OSError):
                self.link.send_bytes(END + (why or "").encode())
            self.link.close()
            self.afterwards()

    def _send(self, data: bytes) -> None:
        try:
            self.link.send_bytes(data)
        except OSError as error:
            raise self._lost(str(error)) from None

    def _lost(self, why: str) -> PartyLost:
        self._word = self._word or Word(False, 0.0, f"{self} is lost: {why}")
        return PartyLost()


@dataclass(frozen=True)
class Hosts:
    """The further hosts of an engine."""

    others: Sequence[FarHost] = ()
    address: str = "127.0.0.1"  # of this host, where ranks meet
    device: Device | None = None  # of the hosts that have the ranks, where none are here


def listen(host: str, port: int, num_hosts: int, names: tuple[str, str] = HOST_FLAGS) -> socket.socket:
    """Where other hosts come to. Raises `ConfigError`, which names the flags."""
    try:
        return socket.create_server((host, port), backlog=num_hosts)
    except socket.gaierror as error:
        raise ConfigError(names[0], host, f"it is no address: {error.strerror}; use one of this host that the others reach") from None
    except OSError as error:
        why = f"nobody can listen there on {host}: {error.strerror}; use an address of this host and a free port"
        raise ConfigError(names[1], port, why) from None


def gather(
    listener: socket.socket, numbers: Sequence[int], flags: Mapping[str, Any], patience_s: float = PATIENCE_S,
    look: Callable[[], None] = lambda: None, kind: str = "host",
) -> list[FarHost]:  # fmt: skip
    """Wait until all these hosts have come; `flags` must be the same there as here, and `look` may raise while they are awaited.

    Raises `ConfigError` where flags differ, `ExecutorDead` when hosts do not come.
    """
    found: dict[int, FarHost] = {}
    begin_s = told_s = time.monotonic()
    address, port = listener.getsockname()[:2]
    listener.settimeout(LOOK_S)
    while missing := [number for number in numbers if number not in found]:
        look()
        now_s, who = time.monotonic(), ", ".join(map(str, missing))
        if now_s - begin_s > patience_s:
            raise ExecutorDead(f"{kind} {who} did not come to {address}:{port} within {patience_s:g} s; is it started, with this address?")
        if now_s - told_s > TELL_S:
            told_s = now_s
            log.info("waiting for %s %s to come to %s:%s", kind, who, address, port)
        with suppress(TimeoutError):
            host = _greet(listener.accept()[0], missing, flags, kind)
            if host is not None:
                found[host.number] = host
                log.info("%s has come", host)
    return [found[number] for number in numbers]


def _greet(plain: socket.socket, missing: Collection[int], flags: Mapping[str, Any], kind: str) -> FarHost | None:
    """Who came, or None for somebody else."""
    link = Connection(lasting(plain).detach())
    try:
        hello: dict[str, Any] = json.loads(link.recv_bytes(1 << 16)) if link.poll(HELLO_S) else {}
        host = FarHost(link, int(hello["host"]), str(hello["name"]), kind)
        theirs = dict(hello["flags"])
    except (EOFError, OSError, ValueError, TypeError, KeyError):
        link.close()
        return None
    if host.number not in missing:
        host.close(f"nobody waits for {host} here; awaited: {', '.join(map(str, missing))}")
        return None
    for name, value in flags.items():
        if theirs.get(name) != value:
            refusal = ConfigError(name, theirs.get(name), f"{host} has it so, and the first host {value!r}; use the same on all hosts")
            host.close(str(refusal))
            raise refusal
    return host
