"""The HTTP application: routes, and what holds for all of them."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.serve.calls import Running, answer_to, send_json
from octavo.serve.endpoints import ENDPOINTS
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.routes import plain_routes

MAX_BODY_BYTES = 8 << 20
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/ping")  # need no key


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
            *(Route(path, Running(front, endpoint), methods=["POST"]) for endpoint in ENDPOINTS for path in endpoint.paths),
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
            answer = answer_to(error)
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
