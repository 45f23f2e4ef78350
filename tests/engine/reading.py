"""The news of a request as an iterator, for tests of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from octavo.engine.client import AsyncEngine, EngineDead
from octavo.types import Request, SequenceOutput


class Reading:
    """A `Reader` that keeps what it is told."""

    def __init__(self, num_continuations: int = 1, request_id: str = "") -> None:
        self._request_id = request_id
        self.news: asyncio.Queue[SequenceOutput | str] = asyncio.Queue()
        self.num_open = num_continuations

    def take(self, news: SequenceOutput) -> None:
        self.news.put_nowait(news)

    def taker(self, index: int) -> Callable[[int], None]:
        return lambda token_id: self.take(SequenceOutput(self._request_id, index, (token_id,)))

    def lost(self, reason: str) -> None:
        self.news.put_nowait(reason)


async def news_of(engine: AsyncEngine, request: Request) -> AsyncGenerator[SequenceOutput]:
    """Closing it aborts the request. Raises `EngineDead`."""
    reading = Reading(request_id=request.id)
    engine.add(request, reading)
    num_open = request.params.n
    try:
        while num_open:
            news = await reading.news.get()
            if isinstance(news, str):
                num_open = 0
                raise EngineDead(news)
            num_open -= news.finish_reason is not None
            yield news
    finally:
        if num_open:
            engine.abort(request.id)
