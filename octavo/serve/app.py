"""The HTTP application: routes, and what holds for all of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.serve.accounts import ACCOUNT, Accounts
from octavo.serve.batches import batch_routes
from octavo.serve.calls import Running, answer_to, send_json
from octavo.serve.dashboard.routes import dashboard_routes
from octavo.serve.endpoints import ENDPOINTS
from octavo.serve.errors import ApiError
from octavo.serve.files import file_routes
from octavo.serve.files_store import store_of
from octavo.serve.front import Front
from octavo.serve.openapi import description_routes
from octavo.serve.profile import profile_routes
from octavo.serve.routes import plain_routes
from octavo.serve.sleep import sleep_routes
from octavo.serve.traces import Parents

MAX_BODY_BYTES = 8 << 20
FORM_BYTES = 1 << 16  # around an uploaded file
OPEN_PATHS = ("/health", "/health/live", "/health/ready", "/health/progress", "/ping")  # need no key
BY_PERSON = 'Basic realm="Octavo: the password is an API key", charset="UTF-8"'


def create_app(front: Front, max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    config = front.config
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
    )
    store = store_of(front)
    routes: list[BaseRoute] = [
        *(Route(path, Running(front, endpoint), methods=["POST"]) for endpoint in ENDPOINTS for path in endpoint.paths),
        *plain_routes(front),
        *sleep_routes(front),
        *profile_routes(front),
        *file_routes(store),
        *batch_routes(store),
    ]
    app = Starlette(
        routes=[*routes, *description_routes(routes), *dashboard_routes(front)],
        middleware=[
            cors,
            *([Middleware(Parents)] if config.otlp_traces_endpoint else []),
            Middleware(ErrorBoundary),
            Middleware(KeyCheck, accounts=front.accounts),
            Middleware(BodyLimit, max_bytes=max_body_bytes, of_path={"/v1/files": config.max_file_mb * 1_000_000 + FORM_BYTES}),
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
    """Every route but the probes needs one of the keys, if there are any. Routes find the account that it belongs to in the scope."""

    def __init__(self, app: ASGIApp, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._accounts.guarded:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            by_person = is_for_persons(path)
            account = self._accounts.of(shown_key(Headers(scope=scope), by_person))
            if path not in OPEN_PATHS and account is None:
                message = "A valid API key is needed: Authorization: Bearer KEY."
                raise ApiError(401, message, code="invalid_api_key", challenge=BY_PERSON if by_person else "Bearer")
            scope[ACCOUNT] = account
        await self._app(scope, receive, send)


def is_for_persons(path: str) -> bool:
    """Routes that only read and that a person opens in a browser, which asks for the key itself and keeps it to itself."""
    return path in ("/dashboard", "/docs", "/openapi.json") or path.startswith("/dashboard/")


def shown_key(headers: Headers, by_person: bool) -> bytes:
    """The key of `Authorization: Bearer KEY` or `x-api-key: KEY`, or, for persons, the password of `Authorization: Basic`; empty: none."""
    scheme, _, given = headers.get("authorization", f"Bearer {headers.get('x-api-key', '')}").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip().encode("latin-1")
    if scheme.lower() == "basic" and by_person:
        try:
            return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


class BodyLimit:
    def __init__(self, app: ASGIApp, max_bytes: int, of_path: Mapping[str, int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._of_path = of_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0
        most = self._of_path.get(scope.get("path", "").removeprefix(scope.get("root_path", "")), self._max_bytes)

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            _check(num_bytes, most)
            return message

        if scope["type"] == "http":
            declared = Headers(scope=scope).get("content-length", "0")
            _check(int(declared) if declared.isdecimal() else 0, most)
        await self._app(scope, counted, send)


def _check(num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise ApiError(413, f"The body is larger than {most} bytes.", code="body_too_large")
