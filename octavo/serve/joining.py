"""A further API process: what it does when the first one has started it (`octavo.serve.beside`)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from octavo.config.server import ServerConfig
from octavo.engine.process import Status, function_at
from octavo.engine.replicas import connect
from octavo.ledger import Ledger
from octavo.serve.beside import messages
from octavo.serve.front import Front
from octavo.serve.launch import Stops, on_quickest_loop, run


class Orders:
    """What the first process says to this one."""

    def __init__(self, fd: int, note_stop: Callable[[], None]) -> None:
        self.joined: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._fd = fd
        self._note_stop = note_stop
        self._engine: Any = None

    async def engine(self) -> Any:
        """The engines, when they are ready."""
        self._engine = connect([(address, info) for address, info in (await self.joined)["doors"]])
        return self._engine

    async def obey(self) -> None:
        async for message in messages(self._fd):
            match message["kind"]:
                case "ready":
                    self.joined.set_result(message)
                case "dead":
                    self._engine.lose(message["reason"])
                case _:
                    self._note_stop()


def run_beside(
    status: Status, fds: tuple[int, int, int], row: tuple[int, int], config: ServerConfig, start: str, args: tuple[Any, ...]
) -> None:
    """A further process: `start` ("module:function") makes its front from `args`, a coroutine for the engine, and the ledger."""
    listener_fd, ledger_fd, orders_fd = fds

    async def main() -> int:
        stops = Stops()
        orders = Orders(orders_fd, stops.note)
        obeying = asyncio.create_task(orders.obey())

        async def front() -> Front:
            made: Front = await function_at(start)(*args, orders.engine(), Ledger(row[0], row[1], ledger_fd))
            made.model = replace(made.model, created=(await orders.joined)["created"])
            return made

        try:
            return await run(config, socket.socket(fileno=listener_fd), front, stops, lambda front: status.say("ready"))
        finally:
            obeying.cancel()

    on_quickest_loop(main)
