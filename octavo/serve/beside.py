"""Further API processes, which answer on the same port and speak to the same engines.

The first process starts them and the engines, tells them where those are, passes on what it hears (an engine's end, a wish to stop), and
ends when one of them does. What they count lies in memory that all share (`octavo.ledger`), so each answers for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from octavo.config.server import ServerConfig
from octavo.engine.client import EngineDead
from octavo.engine.process import spawn
from octavo.ledger import Ledger
from octavo.serve.front import Front
from octavo.serve.listen import BACKLOG

ENDING_S = 2.0  # for a process that has been told to end and has nothing left to do


def bind_too(listener: socket.socket) -> socket.socket:
    """Another socket at the same address: the kernel spreads connections over them. At a path there can only be the one."""
    if listener.family == socket.AF_UNIX:
        return listener.dup()
    other = socket.socket(listener.family, socket.SOCK_STREAM)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(listener.getsockname())
    other.listen(BACKLOG)
    return other


class Other:
    """One of them, as the first sees it."""

    def __init__(self, number: int, listener: socket.socket, ledger: Ledger, args: Sequence[Any]) -> None:
        read_fd, self._orders_fd = os.pipe()
        fds = (listener.fileno(), ledger.fd, read_fd)
        self.child = spawn("octavo.serve.joining:run_beside", fds, (ledger.num_rows, number), *args, fds=fds)
        os.close(read_fd)
        listener.close()  # here; the process has it
        self.number = number
        self.ended: str | None = None
        self.ready = asyncio.Event()  # to answer, or ended
        self._following = asyncio.create_task(self._follow())

    def say(self, kind: str, **facts: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders_fd, json.dumps({"kind": kind, **facts}).encode() + b"\n")

    async def close(self, wait_s: float) -> None:
        """End it, if need be by force once it has had so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._following), wait_s)
        await asyncio.to_thread(self.child.kill)
        await self._following
        os.close(self._orders_fd)

    async def _follow(self) -> None:
        error: str | None = None
        async for message in messages(self.child.status_fd):
            if message["kind"] == "ready":
                self.ready.set()
            else:
                error = message["error"]
        end = await asyncio.to_thread(self.child.end)
        self.ended = f"API process {self.number}: {error or f'it ended with {end}'}"
        self.ready.set()


class Others:
    """All further API processes; by default there are none."""

    def __init__(self, others: Sequence[Other] = ()) -> None:
        self._others = others

    @classmethod
    def start(
        cls, listener: socket.socket, ledger: Ledger, config: ServerConfig, start: str, args: tuple[Any, ...]
    ) -> Others:
        """One for each further row of the ledger. `start` and `args` are those of `octavo.serve.joining.run_beside`."""
        own = replace(config, disable_log_stats=True)
        return cls([Other(row, bind_too(listener), ledger, (own, start, args)) for row in range(1, ledger.num_rows)])

    @property
    def ended(self) -> str | None:
        """Which one has ended, and why."""
        return next((other.ended for other in self._others if other.ended is not None), None)

    def say(self, kind: str, **facts: Any) -> None:
        for other in self._others:
            other.say(kind, **facts)

    async def join(self, front: Front) -> None:
        """Let them serve what `front` serves; returns when they do. Raises `EngineDead` if one cannot."""
        if not self._others:
            return
        self.say("ready", doors=front.engine.doors, created=front.model.created)
        for other in self._others:
            await other.ready.wait()
        if self.ended is not None:
            raise EngineDead(self.ended)

    async def close(self, wait_s: float = 0.0) -> None:
        others, self._others = self._others, ()
        await asyncio.gather(*(other.close(wait_s) for other in others))


async def messages(fd: int) -> AsyncIterator[dict[str, Any]]:
    """The JSON lines that come through a pipe, until it is closed."""
    reader = asyncio.StreamReader(limit=1 << 20)
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while line := await reader.readline():
            yield json.loads(line)
    finally:
        transport.close()
