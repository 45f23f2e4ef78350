"""/dashboard: the page, its files and its data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.serve.dashboard.history import NAMES, History
from octavo.serve.errors import ApiError
from octavo.serve.front import Front

PAGE = "page.html"
MEDIA_TYPES = {
    PAGE: "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "readings.js": "text/javascript; charset=utf-8",
}
# The page runs its own files and nothing else, and talks to its own server alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
DEEPEST = 1 << 62


def dashboard_routes(front: Front) -> list[Route]:
    history = History(front)

    def route(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, answer, methods=["GET"])

    async def page(request: Request) -> Response:
        return _file(PAGE)

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in MEDIA_TYPES or name == PAGE:
            raise ApiError(404, f"There is no route {request.url.path[:200]}.", code="not_found")
        return _file(name)

    async def data(request: Request) -> Response:
        text = request.query_params.get("since", "0")
        if not (text.isascii() and text.isdigit()) or int(text) > DEEPEST:
            raise ApiError(400, f"since = {text[:50]!r} is not possible: the number of a reading is needed, or 0 for all.", param="since")
        samples = await history.since(int(text))
        about = _about(front, history) if int(text) == 0 else {}
        advice = [] if front.engine.dead is not None else await front.engine.advice()
        content = {**_state(front), **about, "advice": advice, "samples": samples}
        return Response(msgspec.json.encode(content), media_type="application/json", headers=HEADERS)

    return [route("/dashboard", page), route("/dashboard/data", data), route("/dashboard/{name}", asset)]


def _file(name: str) -> Response:
    return Response(files("octavo.serve.dashboard").joinpath(name).read_bytes(), media_type=MEDIA_TYPES[name], headers=HEADERS)


def _state(front: Front) -> dict[str, Any]:
    if front.engine.dead is not None:
        return {"state": "dead", "reason": front.engine.dead}
    if front.draining:
        return {"state": "draining", "reason": "the server is shutting down"}
    try:
        front.check_room()
    except ApiError as error:
        return {"state": "full", "reason": str(error)}
    return {"state": "ready", "reason": ""}


def _about(front: Front, history: History) -> dict[str, Any]:
    """What does not change while the server runs."""
    from octavo import __version__

    return {
        "server": f"{front.model.created}",  # another one after a restart
        "model": front.model.names[0],
        "version": __version__,
        "started_s": front.model.created,
        "max_model_len": front.model.intake.max_model_len,
        "startup": list(front.metrics.startup_s.items()),
        "names": NAMES,
        "bounds": history.bounds(),
    }
