"""From a body to an answer, where requests run: parsed, run, sent whole or as a stream, ended when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from octavo.serve.accounts import ACCOUNT
from octavo.serve.errors import ApiError, as_api_error
from octavo.serve.front import Front
from octavo.serve.http import writer_of
from octavo.serve.schemas import parse
from octavo.serve.writer import Writer

log = logging.getLogger("octavo.serve")
MAX_LABEL_CHARACTERS = 128
OF_STREAMS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Whole(Protocol):
    """One call of a client, checked and ready to run."""

    async def whole(self) -> bytes:
        """Run it; the answer's body."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """How a stream that has begun tells what went wrong, and ends."""
        ...


class Answerable(Whole, Protocol):
    """One whose stream is made in steps."""

    def events(self) -> AsyncGenerator[bytes]:
        """Run it; the answer as server-sent events, the closing one included. Only asked for where the body says `stream`."""
        ...


@runtime_checkable
class Direct(Whole, Protocol):
    """One whose stream is written by calls, as the engine's news come: the cheap way, for what is told token by token."""

    async def write_events(self, writer: Writer) -> None: ...


@dataclass(frozen=True)
class Endpoint:
    """A route that runs requests."""

    paths: tuple[str, ...]
    summary: str
    body: type[msgspec.Struct]
    prefix: str  # of ids
    make: Callable[[Front, Any, str], Awaitable[Answerable | Direct]]  # from the body and an id; raises `ApiError` and `InvalidRequest`
    answer: type[msgspec.Struct]
    error: Callable[[ApiError], bytes] = ApiError.body  # the body of what is no answer


class Running:
    """Serves an endpoint. When the client leaves, so do its requests, streamed or not."""

    def __init__(self, front: Front, endpoint: Endpoint) -> None:
        self._front = front
        self.endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._run(scope, receive, send)
        except Exception as error:
            answer = answer_to(error)
            await send_json(send, answer.status, self.endpoint.error(answer), answer.headers)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await parse(await read_body(receive), self.endpoint.body)
        prefix = self.endpoint.prefix
        asked = getattr(body, "request_id", None) or Headers(scope=scope).get("x-request-id")
        label = asked if asked and asked.isascii() and asked.isprintable() else uuid.uuid4().hex
        label = f"{prefix}-{label[:MAX_LABEL_CHARACTERS]}"
        headers = {"X-Request-Id": label.removeprefix(f"{prefix}-")} if self._front.config.enable_request_id_headers else {}
        async with cancelled_when_gone(receive) as leave:
            call = await self.endpoint.make(self._front.of(scope.get(ACCOUNT)), body, label)
            if getattr(body, "stream", None):
                await send_events(call, Writer(send, _start(200, {**OF_STREAMS, **headers}), self._front.turn, writer_of(scope), leave))
            else:
                await send_json(send, 200, await call.whole(), headers)


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncIterator[Callable[[], None]]:
    """Cancels what runs inside as soon as the client disconnects, or when what this gives is called: it might as well have."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()

    watcher = asyncio.create_task(watch())
    try:
        yield leave
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "The client left before the body was complete.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    await send(_start(status, {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}))
    await send({"type": "http.response.body", "body": body})


async def send_events(call: Answerable | Direct, writer: Writer) -> None:
    """The status is sent with the first event, so that what fails before it has an honest status. What fails later is told as an event."""
    try:
        if isinstance(call, Direct):
            await call.write_events(writer)
        else:
            async with aclosing(call.events()) as events:
                async for chunk in events:
                    writer.write(chunk)
                    await writer.sent()
    except Exception as error:
        if not writer.started:
            raise
        writer.write(call.failure(answer_to(error)))
    await writer.close()


def _start(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def answer_to(error: Exception) -> ApiError:
    """The answer to any error; what nobody foresaw is logged, and told without details."""
    answer = as_api_error(error)
    if answer is None:
        log.exception("a request failed in a way that nobody foresaw", exc_info=error)
        answer = ApiError(500, "Internal error; the server's log has the details.", code="internal_error")
    return answer
