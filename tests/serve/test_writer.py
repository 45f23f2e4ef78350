"""Pieces go out at the end of a turn of the event loop, and wait in order behind a client that does not read."""

import asyncio
from typing import Any

import pytest

from octavo.serve.writer import Turn, Writer

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


async def test_a_turns_pieces_go_out_at_its_end_as_one_and_with_no_task() -> None:
    server, turn = Server(), Turn()
    server.open.set()
    one, other = Writer(server.send, START, turn), Writer(server.send, START, turn)
    for writer in (one, other, one):
        writer.write(b"a" if writer is one else b"b")
    assert one.started
    assert server.messages == []
    num_tasks = len(asyncio.all_tasks())
    await asyncio.sleep(0)
    assert server.messages[0] == server.messages[2] == START
    assert server.body == [b"aa", b"b"]
    assert len(asyncio.all_tasks()) == num_tasks
    one.write(b"c")
    await asyncio.sleep(0)
    assert server.body == [b"aa", b"b", b"c"]
    one.write(b"d")
    await one.close()
    assert server.body == [b"aa", b"b", b"c", b"d", b""]


async def test_the_direct_way_is_taken_where_it_is_open_and_keeps_the_order() -> None:
    server, ways = Server(), iter([True, False, True])
    server.open.set()

    def direct(data: bytes) -> bool:
        if way := next(ways):
            server.messages.append({"type": "http.response.body", "body": b"direct " + data})
        return way

    writer = Writer(server.send, START, Turn(), direct)
    for piece in (b"first", b"a", b"b", b"c"):
        writer.write(piece)
        await asyncio.sleep(0)
    assert server.body == [b"first", b"direct a", b"b", b"direct c"]


async def test_one_that_cannot_be_sent_is_left_and_the_others_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(message: Any) -> None:
        raise OSError("no such client")

    server, turn, left = Server(), Turn(), list[str]()
    server.open.set()
    bad, good = Writer(failing, START, turn, leave=lambda: left.append("bad")), Writer(server.send, START, turn)
    bad.write(b"a")
    good.write(b"b")
    await asyncio.sleep(0)
    assert left == ["bad"]
    assert server.body == [b"b"]
    assert "no such client" in caplog.text


async def test_what_a_slow_client_did_not_read_is_sent_as_one() -> None:
    server = Server()
    writer = Writer(server.send, START, Turn())
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
    await asyncio.sleep(0)
    writer.write(b"e")
    server.open.set()
    await closing
    assert server.body == [b"a", b"bc", b"d", b"e", b""]
