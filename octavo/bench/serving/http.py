"""HTTP/1.1 as a load needs it: many requests over kept connections, and the time at which each piece of an answer came.

httptools parses; what is left to do for a piece is little, so that the client does not limit what it measures.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

Clock = Callable[[], float]
KEPT_S = 2.0  # an idle connection is used again within this time; servers close theirs after five seconds or more


class Broken(ConnectionError):
    """The connection ended, or said what is no HTTP, before the answer was complete."""


class Listener(Protocol):
    """Hears an answer."""

    def began(self, status: int) -> None: ...

    def came(self, now_s: float, data: bytes) -> None:
        """A piece of the body."""
        ...


@dataclass(frozen=True)
class Address:
    """Where a server is, and the path before its routes."""

    host: str
    port: int
    path: str = ""
    tls: bool = False

    @staticmethod
    def parse(url: str) -> Address:
        """From `http://127.0.0.1:8000`, also with `/v1` at its end. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an address such as http://127.0.0.1:8000 is needed")
        tls = parts.scheme == "https"
        return Address(parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/").removesuffix("/v1"), tls)

    @property
    def name(self) -> str:
        """As the Host header has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """One connection, one request at a time. The parser calls the methods that begin with `on_`."""

    def __init__(self, clock: Clock) -> None:
        self.closed = False
        self._clock = clock
        self._answer: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes, listener: Listener) -> asyncio.Future[bool]:
        """Send a request. The future ends with the answer, and says whether the connection can be used again, or raises `Broken`."""
        self._parser: Any = HttpResponseParser(self)
        self._listener = listener
        self._has_end = self._has_begun = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self.closed = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock()
        if self._answer is None:
            return self.close()  # nobody has asked
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._end(Broken(f"the server's answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        whole = self._has_begun and not self._has_end if self._answer is not None else False
        self._end(None if whole else Broken("the server closed the connection in the middle of the answer"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_end = self._has_end or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_begun = True
        self._listener.began(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self._listener.came(self._now_s, body)

    def on_message_complete(self) -> None:
        self._end(None)

    def _end(self, error: Broken | None) -> None:
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(not self.closed and self._parser.should_keep_alive())


class Pool:
    """Connections to one server; those that are idle are used again."""

    def __init__(self, address: Address, headers: Mapping[str, str], clock: Clock = time.perf_counter) -> None:
        for name, value in headers.items():
            if not (name + value).isprintable():
                raise ValueError(f"the header {name!r} has characters that no header may have")
        self._address = address
        self._clock = clock
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in {"Host": address.name, **headers}.items())
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[tuple[Connection, float]] = []

    async def request(self, method: str, route: str, body: bytes, listener: Listener) -> None:
        """Until the whole answer has come. Raises OSError, `Broken` among them."""
        connection = self._idle_one() or await self._connect()
        head = f"{method} {self._address.path}{route} HTTP/1.1\r\n{self._fixed}"
        sized = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if method == "POST" else ""
        kept = False
        try:
            kept = await connection.ask(f"{head}{sized}\r\n".encode("latin-1") + body, listener)
        finally:
            if kept:
                self._idle.append((connection, self._clock()))
            else:
                connection.close()

    def close(self) -> None:
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection, since_s = self._idle.pop()
            if not connection.closed and self._clock() - since_s < KEPT_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self._clock), self._address.host, self._address.port, ssl=self._tls)
        return connection
