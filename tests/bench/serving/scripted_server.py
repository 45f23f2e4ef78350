"""A server that says on a socket what a test tells it to: good streams, broken ones, refusals."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """An answer's bytes, in pieces that are written one by one. `cut`: the connection closes after them, without an end."""

    pieces: Sequence[bytes]
    status: int = 200
    pause_s: float = 0.0
    cut: bool = False
    sized: bool = False  # one Content-Length instead of chunks
    until_close: bool = False  # neither: the end of the connection is the end of the body


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def stream(tokens: int = 3, num_prompt: int = 5, cached: int = 2, chat: bool = False, usage: bool = True, pause_s: float = 0.0) -> Reply:
    """A good stream of so many tokens, as OpenAI's servers say it."""

    def choice(text: str, reason: str | None = None) -> bytes:
        said = {"delta": {"content": text}} if chat else {"text": text}
        return event({"choices": [{"index": 0, **said, "finish_reason": reason}]})

    role = [event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})] if chat else []
    counts = {"prompt_tokens": num_prompt, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    last = [event({"choices": [], "usage": counts})] if usage else []
    texts = [choice(f" word{number}", "length" if number == tokens - 1 else None) for number in range(tokens)]
    return Reply([*role, *texts, *last, b"data: [DONE]\n\n"], pause_s=pause_s)


@dataclass
class Scripted:
    """What was asked, and how to answer it."""

    script: Callable[[Body, int], Reply]
    port: int = 0
    bodies: list[Body] = field(default_factory=list[Body])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    num_connections: int = 0
    counts_tokens: bool = True
    models: Sequence[str] = ("scripted",)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")[:-2]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                reply = self._answer(first.split()[1], body, headers)
                await _write(writer, reply)
                if reply.cut or reply.until_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, body: Body, headers: dict[str, str]) -> Reply:
        if path == "/v1/models":
            return Reply([json.dumps({"data": [{"id": name} for name in self.models]}).encode()], sized=True)
        if path == "/tokenize":
            counted = json.dumps({"count": len(body["prompt"].split())}).encode()
            return Reply([counted], sized=True) if self.counts_tokens else Reply([b"{}"], 404, sized=True)
        self.bodies.append(body)
        self.headers.append({**headers, "path": path})
        return self.script(body, len(self.bodies) - 1)


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    size = f"Content-Length: {sum(map(len, reply.pieces))}\r\n" if reply.sized else "Transfer-Encoding: chunked\r\n"
    writer.write(f"HTTP/1.1 {reply.status} Said\r\nContent-Type: any\r\n{'' if reply.until_close else size}\r\n".encode())
    plain = reply.sized or reply.until_close
    for piece in reply.pieces:
        writer.write(piece if plain else f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(reply.pause_s)
    if not (plain or reply.cut):
        writer.write(b"0\r\n\r\n")
    await writer.drain()


@contextmanager
def scripted(script: Callable[[Body, int], Reply] | Reply, **options: Any) -> Iterator[Scripted]:
    """Served in a thread, on a free port of 127.0.0.1."""
    server = Scripted(script if callable(script) else lambda body, number: script, **options)
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    server.port = listening.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}  # pyright: ignore
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
