"""Uvicorn's HTTP/1.1, and a way past its coroutines for pieces of a body: one call a piece, as many as there are tokens.

A connection on which no whole request comes is closed: uvicorn itself waits for ever for the first one, and for the rest of any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

REQUEST_S = 60.0  # for a request to come whole, once its connection or its first byte is there
EXTENSION = "octavo.write"  # under `extensions` in a request's scope


class Protocol(HttpToolsProtocol):
    """Each request's scope has a `Body` among its extensions."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request()

    def on_message_complete(self) -> None:
        self._request_came()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # the application starts at the event loop's next turn
        scope: MutableMapping[str, Any] = self.scope  # pyright: ignore[reportAssignmentType]
        if self.cycle is not None and self.cycle.scope is self.scope:
            scope["extensions"] = {EXTENSION: Body(self.cycle).write}

    def _await_request(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(REQUEST_S, self.transport.close)

    def _request_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Body:
    """The body of an answer that has begun."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._write = cycle, cycle.flow, cycle.transport.write

    def write(self, data: bytes) -> bool:
        """Send a piece, which is not empty. False: the client does not read, or its answer has a length; `send` knows what to do."""
        cycle = self._cycle
        if self._flow.write_paused or not cycle.chunked_encoding:
            return False
        if not cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def writer_of(scope: MutableMapping[str, Any]) -> Callable[[bytes], bool] | None:
    """`Body.write` of a request, where the server has it."""
    return scope.get("extensions", {}).get(EXTENSION)
