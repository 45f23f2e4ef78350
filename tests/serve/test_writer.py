"""Pieces go out at once, and wait in order behind a client that does not read."""

import asyncio
from typing import Any

from octavo.serve.writer import Writer

START = {"type": "http.response.start", "status": 200, "headers": []}


class Server:
    """An ASGI server whose client reads only while `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        await self.open.wait()
        self.messages.append(message)

    @property
    def body(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


async def test_pieces_go_out_with_no_task() -> None:
    server = Server()
    server.open.set()
    writer = Writer(server.send, START)
    writer.write(b"a")
    writer.write(b"b")
    assert server.messages[0] == START
    assert server.body == [b"a", b"b"]
    await writer.close()
    assert server.body == [b"a", b"b", b""]


async def test_what_a_slow_client_did_not_read_is_sent_as_one() -> None:
    server = Server()
    writer = Writer(server.send, START)
    for piece in (b"a", b"b", b"c"):
        writer.write(piece)
    await asyncio.sleep(0)
    assert writer.started
    assert server.messages == []
    server.open.set()
    await writer.sent()
    assert server.body == [b"a", b"bc"]
    server.open.clear()
    writer.write(b"d")
    closing = asyncio.create_task(writer.close())
    writer.write(b"e")
    server.open.set()
    await closing
    assert server.body == [b"a", b"bc", b"d", b"e", b""]
