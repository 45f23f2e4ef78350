"""A served scripted engine: in process, or behind a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from octavo.config.server import ServerConfig
from octavo.serve.app import create_app
from octavo.serve.front import Front, ServedModel
from octavo.serve.launch import Stops, run
from octavo.serve.listen import bind, url_of
from octavo.text.intake import Intake
from octavo.text.pooling import EmbeddingSpace
from octavo.text.template import ChatTemplate
from octavo.types import Request
from tests.scripted_engine import EOS, VOCAB_SIZE, PieceTokenizer, Script, ScriptedEngine

MAX_MODEL_LEN = 128
WAIT_S = 10.0
Scripts = Script | Callable[[Request, int], Script]


def make_front(
    script: Scripts | None = None, *, template: str | None = PieceTokenizer.chat_template, stream_interval: int = 1, **config: Any
) -> Front:
    tokenizer = PieceTokenizer()
    defaults = config.pop("generation_config", {})
    intake = Intake(tokenizer, MAX_MODEL_LEN, VOCAB_SIZE, (EOS,), defaults, stream_interval=stream_interval)
    space = EmbeddingSpace(4, shorter=(2,))
    served = ServedModel(("tiny", "alias"), tokenizer, intake, space, template and ChatTemplate(template, {"bos_token": "<s>"}), "<s>")
    return Front(ScriptedEngine(tokenizer, script or Script()), served, ServerConfig(**config))


@dataclass
class Client:
    """A client in process."""

    front: Front
    http: httpx.AsyncClient
    engine: ScriptedEngine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = self.front.engine  # pyright: ignore

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **kwargs)

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, which must end with one [DONE]."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        return parse_events(response.text)

    async def alive(self) -> None:
        """A good request is answered, and nothing is left of the others."""
        response = await self.post("/v1/completions", {"prompt": "Hi"})
        assert response.status_code == 200
        assert response.json()["choices"][0]["text"]
        assert not self.engine.active
        assert not self.front.running
        assert self.front.queue.num_requests == self.front.queue.num_tokens == 0


def parse_events(text: str) -> list[dict[str, Any]]:
    *events, done, rest = text.split("\n\n")
    assert rest == ""
    assert done == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


@asynccontextmanager
async def client(script: Scripts | None = None, *, max_body_bytes: int = 1 << 20, **config: Any) -> AsyncIterator[Client]:
    front = make_front(script, **config)
    transport = httpx.ASGITransport(create_app(front, max_body_bytes))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as http:
        yield Client(front, http)


@dataclass
class Served:
    front: Front
    url: str
    loop: asyncio.AbstractEventLoop
    stops: Stops
    result: list[int] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def engine(self) -> ScriptedEngine:
        return self.front.engine  # pyright: ignore

    def call(self, function: Callable[[], Any]) -> None:
        self.loop.call_soon_threadsafe(function)

    def wait(self) -> int:
        assert self.thread is not None
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.result[0]


@contextmanager
def served(script: Scripts | None = None, **config: Any) -> Iterator[Served]:
    """A real server in a thread, on a free port of 127.0.0.1."""
    front = make_front(script, port=0, **config)
    listener = bind(front.config)
    loop = asyncio.new_event_loop()

    async def start() -> Front:
        return front

    async def main() -> int:
        server.stops = Stops()
        return await run(front.config, listener, start, server.stops)

    server = Served(front, url_of(front.config, listener), loop, None)  # pyright: ignore
    server.thread = threading.Thread(target=lambda: server.result.append(loop.run_until_complete(main())))
    server.thread.start()
    try:
        yield server
    finally:
        if server.thread.is_alive():
            for _ in range(2):
                server.call(lambda: server.stops.note())
        server.wait()
        loop.close()


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
