"""The agent of a further host: goes to the engine, starts the workers that it is given, and relays plans, outcomes and the first error."""

from __future__ import annotations

import json
import logging
import pickle
import platform
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from octavo import env
from octavo.cluster.far import ASK, BEGIN, DEAD, END, OUTCOME, PATIENCE_S, PLAN, PROGRESS, READY
from octavo.engine.executor import ExecutorDead, PartyLost
from octavo.engine.workers import Workers
from octavo.host.network import LOST_S, connect, interface_of

log = logging.getLogger(__name__)


def serve_host(
    address: tuple[str, int], number: int, flags: Mapping[str, Any], begin: Callable[[Any], Workers], patience_s: float = PATIENCE_S
) -> None:
    """Run what the engine at `address` gives to host `number`, until it ends; `begin` starts the workers of a task.

    Raises `ExecutorDead` with the first error of any host, and `NobodyThere`.
    """
    link, own_address = come(address, number, flags, patience_s)
    env.meet_over(interface_of(own_address))
    task = task_from(link)
    try:
        workers = begin(task)
    except Exception as error:
        _tell_death(link, False, 0.0, f"host {number} ({platform.node()}): {error}")
        raise
    try:
        _relay(link, workers)
    finally:
        workers.close()


def come(address: tuple[str, int], number: int, flags: Mapping[str, Any], patience_s: float = PATIENCE_S) -> tuple[Connection, str]:
    """A connection to who waits at `address`, and this host's own address there. Raises `NobodyThere`."""
    plain = connect(*address, patience_s)
    own_address: str = plain.getsockname()[0]
    link = Connection(plain.detach())
    link.send_bytes(json.dumps({"host": number, "name": platform.node(), "flags": dict(flags)}).encode())
    log.info("number %d is at %s:%d and waits for its task", number, *address)
    return link, own_address


def task_from(link: Connection) -> Any:
    """What is to run here. Raises `ExecutorDead` where it is nothing, with the reason."""
    message = receive(link)
    if message[:1] != BEGIN:
        raise ExecutorDead(message[1:].decode() or "the engine has ended")
    return pickle.loads(message[1:])


def _relay(link: Connection, workers: Workers) -> None:
    """Returns when the engine ends well. Raises `ExecutorDead`."""
    told = False
    while True:
        ready = wait([link, *workers.doors])
        try:
            if link in ready and _hand_on(receive(link), link, workers):
                return
            outcomes = workers.hear(ready)
        except PartyLost:
            word = workers.word()
            assert word is not None, "one of them has ended"
            _tell_death(link, *word)
            raise ExecutorDead(verdict(link) or word.text) from None
        for outcome in outcomes:
            link.send_bytes(OUTCOME + outcome)
        if not told and workers.told is not None:
            told = True
            link.send_bytes(READY + json.dumps(workers.told).encode())


def _hand_on(message: bytes, link: Connection, workers: Workers) -> bool:
    """Do what the engine says; whether it has ended well."""
    kind, body = message[:1], message[1:]
    if kind == PLAN:
        workers.tell(body)
    elif kind == ASK:
        link.send_bytes(PROGRESS + workers.progress().encode())
    elif kind == END and body:
        raise ExecutorDead(body.decode())
    return kind == END


def receive(link: Connection) -> bytes:
    """The next message of the first host. Raises `ExecutorDead`."""
    try:
        return link.recv_bytes()
    except (EOFError, OSError) as error:
        raise ExecutorDead(f"the first host is lost: {str(error) or 'its process has ended'}") from None


def _tell_death(link: Connection, *word: object) -> None:
    try:
        link.send_bytes(DEAD + json.dumps(word).encode())
    except OSError:
        log.warning("the first host is lost too")


def verdict(link: Connection) -> str | None:
    """What the engine says was the first error of all, once it has heard of this host's."""
    try:
        while link.poll(LOST_S):
            message = link.recv_bytes()
            if message[:1] == END:
                return message[1:].decode()
    except (EOFError, OSError):
        pass
    return None
