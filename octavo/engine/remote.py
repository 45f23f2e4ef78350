"""An engine in a process of its own, started here: the `AsyncEngine` of the server and of `AsyncLLM`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from octavo.engine.client import EngineDead
from octavo.engine.link import EngineLink
from octavo.engine.messages import Stop
from octavo.engine.process import ANYWHERE, Process, Word, spawn, word_in
from octavo.host.place import Place


class RemoteEngine(EngineLink):
    """Starts its process when made, inside the event loop that will use it; `RemoteEngine.start` also waits until it is ready."""

    def __init__(
        self,
        build: str,
        args: tuple[Any, ...],
        on_stage: Callable[[Mapping[str, Any]], None] | None = None,
        place: Place = ANYWHERE,
        process: Process | None = None,
    ) -> None:
        """`process` has been started already, on another host."""
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="octavo-")  # of the socket; only this user can enter it
        self.on_death: Callable[[], None] | None = None  # who says by `lose` why all is lost, instead of this
        self.last_word: Word | None = None  # once its process has ended
        self._on_stage = on_stage
        address = f"ipc://{self._folder.name}/engine"
        self._child = process or spawn("octavo.engine.server:run_engine", address, build, args, place=place)
        self._gone = asyncio.Event()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._reading_status = asyncio.create_task(self._read_status())

    @classmethod
    async def start(
        cls,
        build: str,
        args: tuple[Any, ...],
        on_stage: Callable[[Mapping[str, Any]], None] | None = None,
        place: Place = ANYWHERE,
    ) -> RemoteEngine:
        """Start the process and wait until its engine is ready. Raises `EngineDead` with the child's own first error."""
        engine = cls(build, args, on_stage, place)
        try:
            await engine.ready()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def ready(self) -> None:
        await self._ready

    @property
    def pid(self) -> int:
        return self._child.pid

    async def close(self, drain_s: float = 0.0) -> None:
        """End the engine: let running requests finish for `drain_s`, then end what is left."""
        if self._dead is None and self._ready.done():
            self._send(Stop(drain=drain_s > 0))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), max(drain_s, 2.0))
        await asyncio.to_thread(self._child.kill)
        if self._dead is None:
            self.lose("the engine was closed")
        self._reading_status.cancel()
        await asyncio.gather(self._reading_status, return_exceptions=True)
        await super().close()
        self._folder.cleanup()

    async def _read_status(self) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._child.status_fd, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        error: Word | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if message["kind"] == "ready":
                    self.connect(message["address"], message["info"])
                    self._ready.set_result(None)
                elif message["kind"] == "error":
                    error = word_in(message)
                elif self._on_stage is not None:
                    self._on_stage(message)
        finally:
            transport.close()
        end = await asyncio.to_thread(self._child.end)
        self.last_word = error or Word(False, 0.0, f"the engine process ended with {end}")
        self._gone.set()
        if self.on_death is None:
            self.lose(self.last_word.text)
        else:
            self.on_death()

    def lose(self, reason: str) -> None:
        """The engine has ended, or is ended now."""
        self._child.stop(reason)
        if not self._ready.done():
            self._ready.set_exception(EngineDead(reason))
        super().lose(reason)
