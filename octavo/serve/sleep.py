"""The routes that put the model to sleep and wake it, with vLLM's names and queries. They need --enable-sleep-mode."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.engine.sleep import BUSY, PARTS
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.routes import reply
from octavo.types import InvalidRequest

LOOK_EVERY_S = 0.02  # whether those that run have ended
MODES = ("abort", "wait")


def sleep_routes(front: Front) -> list[Route]:
    async def sleep(request: Request) -> Response:
        """Give the device's memory back: level 1 keeps the weights in the host's memory, level 2 drops them."""
        _check_allowed(front)
        level, mode = request.query_params.get("level", "1"), request.query_params.get("mode", "abort")
        if level not in ("1", "2"):
            raise InvalidRequest("level", level, "use 1 (weights to the host's memory) or 2 (weights dropped)")
        if mode not in MODES:
            raise InvalidRequest("mode", mode, "use abort (running requests end now) or wait (they end by themselves)")
        while BUSY in await front.engine.order("pause", mode):
            await asyncio.sleep(LOOK_EVERY_S)
        return _done(await front.engine.order("sleep", int(level)))

    async def wake_up(request: Request) -> Response:
        """Take the memory again; with `tags` only that of weights or kv_cache."""
        _check_allowed(front)
        tags = request.query_params.getlist("tags")
        for tag in tags:
            if tag not in PARTS:
                raise InvalidRequest("tags", tag, f"use {' or '.join(PARTS)}")
        return _done(await front.engine.order("wake", tags or list(PARTS)))

    async def is_sleeping(request: Request) -> Response:
        """Whether the model sleeps."""
        return reply({"is_sleeping": await sleeping(front)})

    return [
        Route("/sleep", sleep, methods=["POST"]),
        Route("/wake_up", wake_up, methods=["POST"]),
        Route("/is_sleeping", is_sleeping),
    ]


async def sleeping(front: Front) -> bool:
    """Whether any engine sleeps."""
    return any(stats.counters.get("sleep_level", 0) for stats in await front.engine.stats())


def _check_allowed(front: Front) -> None:
    if not front.model.can_sleep:
        raise InvalidRequest("enable_sleep_mode", False, "start the server with --enable-sleep-mode")


def _done(complaints: list[str]) -> Response:
    if complaints:
        raise ApiError(503, f"{complaints[0]}.", code="sleep_failed")
    return reply({})
