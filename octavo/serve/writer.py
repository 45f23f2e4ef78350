"""Bodies that are written as they are made, by calls: no task wakes for a piece of text, unless its client does not read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from starlette.types import Message, Send

log = logging.getLogger("octavo.serve")
MAX_KEPT_BYTES = 16 << 20  # for a client that does not read; the answer of one that does is not that far behind


class Turn:
    """A turn of the event loop. What its writers could not send directly is sent at its end: a client gets a step's news as one piece."""

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """It has something to send."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._end)
        self._writers.append(writer)

    def _end(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            try:
                writer.flush()
            except Exception:  # the others' clients are as good as ever
                log.exception("an answer could not be sent")
                writer.give_up()


class Writer:
    """The body of one answer, sent at the end of each turn. The status line goes out with the first piece.

    `send` is an ASGI server's: it ends at once, unless the client reads too slowly. Then what comes is kept, and sent as one piece later.
    `direct` is a cheaper way for all but the first piece, of a server that itself sends at the end of a turn; it says whether it could.
    When more than `MAX_KEPT_BYTES` are kept, the client is given up: they are dropped, and `leave` is called.
    """

    __slots__ = ("_begun", "_direct", "_first", "_kept", "_late", "_late_bytes", "_leave", "_send", "_turn", "started")

    def __init__(
        self,
        send: Send,
        first: Message,
        turn: Turn,
        direct: Callable[[bytes], bool] | None = None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.started = False  # something was written
        self._begun = False  # the status line has been sent
        self._direct = direct
        self._send = send
        self._first = first
        self._turn = turn
        self._leave = leave
        self._kept: list[bytes] = []  # not sent yet
        self._late: asyncio.Task[None] | None = None  # sends what the client had no room for
        self._late_bytes = 0  # kept meanwhile

    def write(self, data: bytes) -> None:
        self.started = True
        if self._late is not None:
            self._keep(data)
            return
        if not self._kept:
            if self._begun and self._direct is not None and self._direct(data):
                return
            self._turn.add(self)
        self._kept.append(data)

    def flush(self) -> None:
        """Send what was written, unless something is on its way."""
        kept = self._kept
        if not kept or self._late is not None:
            return
        data = kept[0] if len(kept) == 1 else b"".join(kept)
        kept.clear()
        self._attempt(self._piece(data))

    def give_up(self) -> None:
        """The client gets no more."""
        self._kept.clear()
        self._late_bytes = 0
        self._leave()

    async def sent(self) -> None:
        """Send what was written, and wait until the client has room for it."""
        self.flush()
        if self._late is not None:
            await self._late

    async def close(self) -> None:
        """Wait until all is sent, and end the body."""
        await self.sent()
        await self._send({"type": "http.response.body", "body": b""})

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._late_bytes += len(data)
        if self._late_bytes > MAX_KEPT_BYTES:
            log.warning("a client that does not read is given up; %d bytes of its answer were waiting", self._late_bytes)
            self.give_up()

    def _attempt(self, sending: Any) -> None:
        """Run the coroutine as far as it goes now; the rest of it becomes a task."""
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return
        self._late = asyncio.ensure_future(self._go_on(Rest(sending, waits_for)))

    async def _piece(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            await self._send(self._first)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _go_on(self, rest: Rest) -> None:
        await rest
        while self._kept:
            data, self._kept, self._late_bytes = b"".join(self._kept), [], 0
            await self._piece(data)
        self._late = None


class Rest:
    """What is left of a coroutine that has run up to where it waits for something."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits_for
        yield from self._coroutine.__await__()
