"""Runs the calls of a batch on a server's front, without HTTP: what a line gets is what the route would answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from octavo.cli.batch_file import BadLine, Line
from octavo.engine.client import EngineDead
from octavo.serve.chat import chat_completions
from octavo.serve.completions import completions
from octavo.serve.errors import ApiError, as_api_error
from octavo.serve.front import Front
from octavo.serve.schemas import ChatBody, CompletionBody, convert

log = logging.getLogger("octavo.batch")
ROUTES: dict[str, tuple[type[Any], Callable[..., Any]]] = {
    "/v1/completions": (CompletionBody, completions),
    "/v1/chat/completions": (ChatBody, chat_completions),
}


async def answer(front: Front, lines: Sequence[Line | BadLine], keep: Callable[[dict[str, Any]], None], concurrency: int) -> None:
    """Answer every line, `concurrency` at a time, and hand each record to `keep` as soon as it is there. Raises `EngineDead`."""
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:  # one iterator for all workers: each takes the next line that nobody has
            keep(line.record() if isinstance(line, BadLine) else await _call(front, line))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(lines))):
                group.create_task(work())
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


async def _call(front: Front, line: Line) -> dict[str, Any]:
    kind, make = ROUTES[line.url]
    try:
        call = await make(front, convert(dict(line.body), kind), f"batch-{line.number}")
        return line.record(200, json.loads(await call.whole()))
    except EngineDead:
        raise
    except Exception as error:
        known = as_api_error(error)
        if known is None:
            log.exception("line %d", line.number)
            known = ApiError(500, "Something went wrong inside; the log has it.")
        return line.record(known.status, json.loads(known.body()))
