"""The routes that take profiles of the engine's steps, with vLLM's names. They need --profiler-config."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.routes import reply


def profile_routes(front: Front) -> list[Route]:
    async def start_profile(request: Request) -> Response:
        """Begin to profile the engine's steps."""
        return _done(await front.engine.order("start_profile"))

    async def stop_profile(request: Request) -> Response:
        """End the profile, and write it to the folder of --profiler-config."""
        return _done(await front.engine.order("stop_profile"))

    return [Route("/start_profile", start_profile, methods=["POST"]), Route("/stop_profile", stop_profile, methods=["POST"])]


def _done(complaints: list[str]) -> Response:
    if complaints:
        raise ApiError(400, f"No profile: {complaints[0].removeprefix('ValueError: ')}.", code="profile_failed")
    return reply({})
