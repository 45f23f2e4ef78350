"""Bodies that are written as they are made, by calls: no task wakes for a piece of text, unless its client does not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from starlette.types import Message, Send

log = logging.getLogger("octavo.serve")
MAX_KEPT_BYTES = 16 << 20  # for a client that does not read; the answer of one that does is not that far behind


class Writer:
    """The body of one answer. The status line goes out with the first piece.

    `send` is an ASGI server's: it ends at once, unless the client reads too slowly. Then what comes is kept, and sent as one piece later.
    `direct` is a cheaper way for all but the first piece; it says whether it could send. When more than `MAX_KEPT_BYTES` are kept, the
    client is given up: they are dropped, and `leave` is called.
    """

    __slots__ = ("_direct", "_first", "_kept", "_kept_bytes", "_late", "_leave", "_send", "started")

    def __init__(
        self, send: Send, first: Message, direct: Callable[[bytes], bool] | None = None, leave: Callable[[], None] = lambda: None
    ) -> None:
        self.started = False
        self._direct = direct
        self._send = send
        self._first = first
        self._leave = leave
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._late: asyncio.Task[None] | None = None  # sends what the client had no room for

    def write(self, data: bytes) -> None:
        if self._late is not None:
            self._keep(data)
        elif not self.started:
            self.started = True
            self._attempt(self._both(data))
        elif self._direct is None or not self._direct(data):
            self._attempt(self._send({"type": "http.response.body", "body": data, "more_body": True}))

    async def sent(self) -> None:
        """Wait until the client has room for what was written."""
        if self._late is not None:
            await self._late

    async def close(self) -> None:
        """Wait until all is sent, and end the body."""
        await self.sent()
        await self._send({"type": "http.response.body", "body": b""})

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_KEPT_BYTES:
            log.warning("a client that does not read is given up; %d bytes of its answer were waiting", self._kept_bytes)
            self._kept.clear()
            self._kept_bytes = 0
            self._leave()

    def _attempt(self, sending: Any) -> None:
        """Run the coroutine as far as it goes now; the rest of it becomes a task."""
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return
        self._late = asyncio.ensure_future(self._go_on(Rest(sending, waits_for)))

    async def _both(self, data: bytes) -> None:
        await self._send(self._first)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _go_on(self, rest: Rest) -> None:
        await rest
        while self._kept:
            data, self._kept, self._kept_bytes = b"".join(self._kept), [], 0
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._late = None


class Rest:
    """What is left of a coroutine that has run up to where it waits for something."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits_for
        yield from self._coroutine.__await__()
