"""A server under a load, from the first look at it to what came of every request."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from octavo.bench.serving.client import Ask, Outcome, Route, ask
from octavo.bench.serving.dataset import Dataset
from octavo.bench.serving.http import Address, Clock, Pool
from octavo.bench.serving.run import Run, drive

T = TypeVar("T")
RETRY_S = 0.25
COUNTED_AT_ONCE = 8
CHARACTERS_A_TOKEN = 4  # where the server cannot count


class ServerUnusable(RuntimeError):
    """The server cannot be measured; the text says why."""


@dataclass(frozen=True)
class Server:
    """A server and how it is spoken to. Ask it within one event loop."""

    address: Address
    route: Route
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 3600.0  # of one request
    clock: Clock = time.perf_counter

    def pool(self) -> Pool:
        return Pool(self.address, self.headers, self.clock)


class Body:
    """Hears an answer that is no stream."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""

    def began(self, status: int) -> None:
        self.status = status

    def came(self, now_s: float, data: bytes) -> None:
        self.data += data

    def value(self) -> Any:
        """The JSON of a good answer, else None."""
        try:
            return json.loads(self.data) if self.status == 200 else None
        except ValueError:
            return None


async def fetch(pool: Pool, route: str, value: Any = None) -> Body:
    """One call that is no stream: GET, or POST of a value. Raises OSError."""
    body = Body()
    sent = b"" if value is None else json.dumps(value).encode()
    await pool.request("GET" if value is None else "POST", route, sent, body)
    return body


async def find_model(server: Server, wait_s: float = 0.0) -> Server:
    """The server with the name of its first model, where none was given; waits up to `wait_s` for it to answer. Raises `ServerUnusable`."""
    pool = server.pool()
    end_s = server.clock() + wait_s
    while True:
        try:
            found = await fetch(pool, "/v1/models")
            problem = f"/v1/models answers with status {found.status}: {found.data[:200].decode('utf-8', 'replace')}"
        except OSError as error:
            found, problem = Body(), str(error.strerror or error)
        if found.status == 200 or server.clock() > end_s:
            break
        await asyncio.sleep(RETRY_S)
    pool.close()
    if server.route.model is not None and found.status in (200, 404):
        return server
    names = [one["id"] for one in (found.value() or {}).get("data", [])] if found.status == 200 else []
    if not names:
        raise ServerUnusable(f"{server.address.name}: {problem}")
    return replace(server, route=replace(server.route, model=names[0]))


async def count_tokens(server: Server, texts: Sequence[str]) -> tuple[list[int], bool]:
    """Tokens of each text by the server's /tokenize, or about so many where it has none; and whether they were counted."""
    pool = server.pool()
    gate = asyncio.Semaphore(COUNTED_AT_ONCE)

    async def count(text: str) -> int | None:
        async with gate:
            found = (await fetch(pool, "/tokenize", {"model": server.route.model, "prompt": text})).value()
        return found.get("count") if isinstance(found, dict) else None

    try:
        counts = [await count(texts[0]), *await asyncio.gather(*map(count, texts[1:]))] if await count(texts[0]) else []
    except OSError as error:
        raise ServerUnusable(f"{server.address.name}: {error.strerror or error}") from None
    finally:
        pool.close()
    if not counts:
        return [max(1, len(text) // CHARACTERS_A_TOKEN) for text in texts], False
    return [count or 0 for count in counts], True


async def measure(
    server: Server,
    dataset: Dataset,
    warm_ups: Sequence[Ask] = (),
    max_concurrency: int | None = None,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """The load, after requests that are not counted. Raises `ServerUnusable` if none of those is answered."""
    pool = server.pool()

    async def send(body: bytes, due_s: float) -> Outcome:
        return await ask(pool, server.route, body, due_s, server.clock, server.timeout_s)

    warmed = await asyncio.gather(*(send(server.route.body(one), server.clock()) for one in warm_ups))
    if warmed and all(one.error is not None for one in warmed):
        raise ServerUnusable(f"{server.address.name}{server.route.endpoint}, the first request: {warmed[0].error}")

    run = await drive(
        dataset.load,
        dataset.num_prompts,
        lambda arrival: server.route.body(dataset.ask(arrival)),
        send,
        server.clock,
        max_concurrency,
        on_end,
    )
    pool.close()
    return run


def run_quickly(main: Coroutine[Any, Any, T]) -> T:
    """In the quickest event loop there is."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
