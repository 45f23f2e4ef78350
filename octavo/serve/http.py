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
        self._way = Way(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_came()
        self._way.open = False
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._way.open = False
        super().pause_writing()

    def resume_writing(self) -> None:
        self._way.open = not self.transport.is_closing()
        super().resume_writing()

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
            scope["extensions"] = {EXTENSION: Body(self.cycle, self._way).write}

    def _await_request(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(REQUEST_S, self.transport.close)

    def _request_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Way:
    """To a client. `open` while it is there and reads."""

    __slots__ = ("open", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.open = transport, True


class Body:
    """The body of an answer that has begun."""

    __slots__ = ("_chunked", "_cycle", "_way")

    def __init__(self, cycle: RequestResponseCycle, way: Way) -> None:
        self._cycle, self._way = cycle, way
        self._chunked: bool | None = None  # not known before the answer begins

    def write(self, data: bytes) -> bool:
        """Send a piece, which is not empty. False: the client has left or does not read, or its answer has a length; `send` knows what to
        do."""
        if self._chunked is None:
            self._chunked = self._cycle.chunked_encoding
        way = self._way
        if not way.open or not self._chunked:
            return False
        way.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def writer_of(scope: MutableMapping[str, Any]) -> Callable[[bytes], bool] | None:
    """`Body.write` of a request, where the server has it."""
    return scope.get("extensions", {}).get(EXTENSION)
