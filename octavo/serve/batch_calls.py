"""Runs the calls of a batch on a server's front, without HTTP: what a line gets is what the route would answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from octavo.engine.client import EngineDead
from octavo.serve.batch_file import BadLine, Line
from octavo.serve.endpoints import BY_PATH
from octavo.serve.errors import ApiError, as_api_error
from octavo.serve.front import Front
from octavo.serve.schemas import convert

log = logging.getLogger("octavo.batch")


async def answer(
    front: Front,
    lines: Iterable[Line | BadLine],
    keep: Callable[[dict[str, Any]], None],
    concurrency: int,
    turn: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Answer every line, `concurrency` at a time, and hand each record to `keep` as soon as it is there. Raises `EngineDead`.

    Each call is made in a `turn` of its own, with `fields` put over its body. One that is refused for now (429, 503) is made again.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:  # one iterator for all workers: each takes the next line that nobody has
            if isinstance(line, BadLine):
                keep(line.record())
                continue
            while True:
                async with turn():
                    said = await _call(front, line, fields or {})
                if not isinstance(said, ApiError):
                    break
                await asyncio.sleep(float(said.headers["Retry-After"]))
            keep(said)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


async def _call(front: Front, line: Line, fields: Mapping[str, Any]) -> dict[str, Any] | ApiError:
    """The record of what the route answers, or a refusal that says when to come again."""
    endpoint = BY_PATH[line.url]
    try:
        call = await endpoint.make(front, convert({**line.body, **fields}, endpoint.body), f"batch-{line.number}")
        return line.record(200, json.loads(await call.whole()))
    except EngineDead:
        raise
    except Exception as error:
        known = as_api_error(error)
        if known is None:
            log.exception("line %d", line.number)
            known = ApiError(500, "Something went wrong inside; the log has it.")
        return known if known.status in (429, 503) else line.record(known.status, json.loads(known.body()))
