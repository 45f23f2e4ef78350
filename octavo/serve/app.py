"""The HTTP application: routes, and what holds for all of them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.serve import sse
from octavo.serve.answers import Call
from octavo.serve.chat import chat_completions
from octavo.serve.completions import completions
from octavo.serve.errors import ApiError, as_api_error
from octavo.serve.front import Front
from octavo.serve.routes import plain_routes
from octavo.serve.schemas import ChatBody, CompletionBody, convert, parse_json

log = logging.getLogger("octavo.serve")
MAX_BODY_BYTES = 8 << 20
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/ping")  # need no key
MAX_LABEL_CHARACTERS = 128


def create_app(front: Front, max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    config = front.config
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
    )
    app = Starlette(
        routes=[
            Route("/v1/completions", Generating(front, CompletionBody, "cmpl", completions), methods=["POST"]),
            Route("/v1/chat/completions", Generating(front, ChatBody, "chatcmpl", chat_completions), methods=["POST"]),
            *plain_routes(front),
        ],
        middleware=[
            cors,
            Middleware(ErrorBoundary),
            Middleware(KeyCheck, keys=config.api_key),
            Middleware(BodyLimit, max_bytes=max_body_bytes),
        ],
        exception_handlers={HTTPException: _on_http_error},  # pyright: ignore[reportArgumentType]
    )
    app.router.redirect_slashes = False
    return app


class Generating:
    """A route that runs requests. When the client leaves, so do they, streamed or not."""

    def __init__(self, front: Front, kind: type[Any], prefix: str, make: Callable[[Front, Any, str], Awaitable[Call]]) -> None:
        self._front = front
        self._kind = kind
        self._prefix = prefix
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = convert(parse_json(await read_body(receive)), self._kind)
        asked = body.request_id or Headers(scope=scope).get("x-request-id")
        label = asked if asked and asked.isascii() and asked.isprintable() else uuid.uuid4().hex
        label = f"{self._prefix}-{label[:MAX_LABEL_CHARACTERS]}"
        headers = {"X-Request-Id": label.removeprefix(f"{self._prefix}-")} if self._front.config.enable_request_id_headers else {}
        async with cancelled_when_gone(receive):
            call = await self._make(self._front, body, label)
            if body.stream:
                await send_events(send, call.events(), headers)
            else:
                await send_json(send, 200, await call.whole(), headers)


@asynccontextmanager
async def cancelled_when_gone(receive: Receive) -> AsyncIterator[None]:
    """Cancels what runs inside as soon as the client disconnects."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
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


async def send_events(send: Send, events: AsyncGenerator[bytes], headers: Mapping[str, str]) -> None:
    """The status is sent with the first event, so that what fails before it has an honest status. What fails later is told as an event."""
    async with aclosing(events):
        chunk = await anext(events)
        fixed = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        await send(_start(200, {**fixed, **headers}))
        try:
            while True:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(events, None)
                if chunk is None:
                    break
        except Exception as error:
            failure = sse.event(_answer_to(error).reply) + sse.DONE
            await send({"type": "http.response.body", "body": failure, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _start(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def _answer_to(error: Exception) -> ApiError:
    answer = as_api_error(error)
    if answer is None:
        log.exception("a request failed in a way that nobody foresaw", exc_info=error)
        answer = ApiError(500, "Internal error; the server's log has the details.", code="internal_error")
    return answer


def _on_http_error(request: Request, error: HTTPException) -> Response:
    told = {
        404: f"There is no route {request.url.path[:200]}.",
        405: f"{request.method} is not allowed on {request.url.path[:200]}.",
    }
    answer = ApiError(
        error.status_code, told.get(error.status_code, str(error.detail)), code="not_found" if error.status_code == 404 else None
    )
    return Response(answer.body(), error.status_code, {**(error.headers or {}), **answer.headers}, "application/json")


class ErrorBoundary:
    """Nothing that a request does goes further than its own answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            answer = _answer_to(error)
            if started:
                raise
            await send_json(send, answer.status, answer.body(), answer.headers)


class KeyCheck:
    """Every route but the probes needs one of the keys, if there are any."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_to_all = scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS
        if self._keys and not open_to_all and not self._valid(Headers(scope=scope)):
            raise ApiError(401, "A valid API key is needed: Authorization: Bearer KEY.", code="invalid_api_key")
        await self._app(scope, receive, send)

    def _valid(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip().encode("latin-1")
        # Every key is compared, in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(shown, key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


class BodyLimit:
    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            self._check(num_bytes)
            return message

        if scope["type"] == "http":
            declared = Headers(scope=scope).get("content-length", "0")
            self._check(int(declared) if declared.isdecimal() else 0)
        await self._app(scope, counted, send)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise ApiError(413, f"The body is larger than {self._max_bytes} bytes.", code="body_too_large")
