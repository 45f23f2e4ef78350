"""Clients that read streams and only count events, so that the server is what limits them."""

from __future__ import annotations

import asyncio
import json
from ctypes import Array, c_uint64
from typing import Any, cast
from urllib.parse import urlsplit

STOP = ["\n\n###", "</answer>", "STOP"]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": "Say it", "stop": STOP}),
    "tools": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Say it"}], "tools": [TOOL], "stop": STOP}),
}
STREAM = {"stream": True, "max_tokens": 1 << 23, "ignore_eos": True}


class Stream(asyncio.Protocol):
    """One connection with one stream. `counts[place]` grows by its events."""

    def __init__(self, request: bytes, counts: Array[c_uint64], place: int) -> None:
        self._request, self._counts, self._place = request, counts, place
        self._split = False  # the last byte may be the first half of an event's end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._counts[self._place] += data.count(b"\n\n") + (self._split and data[:1] == b"\n")
        self._split = data[-1:] == b"\n" and data[-2:] != b"\n\n"


def read_streams(url: str, script: str, num_streams: int, counts: Array[c_uint64], place: int) -> None:
    """Hold so many streams open until killed."""
    path, body = CALLS[script]
    content = json.dumps(body | STREAM).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 80

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(num_streams):
            await loop.create_connection(lambda: Stream(head.encode() + content, counts, place), host, port)
        await asyncio.Event().wait()

    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
