"""What counts as an answer, and what is measured of it."""

from __future__ import annotations

import asyncio
import socket
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serving.client import Answer, Ask, Outcome, Route, ask
from octavo.bench.serving.http import Address, Connection, Pool
from tests.bench.serving.scripted_server import Reply, Scripted, event, scripted, stream

ROUTE = Route("/v1/completions", "m")


def call(server: Scripted | None, times: int = 1, chat: bool = False, timeout_s: float = 10.0, port: int = 0) -> list[Outcome]:
    async def main() -> list[Outcome]:
        pool = Pool(Address("127.0.0.1", server.port if server else port), {})
        route = Route("/v1/chat/completions", "m") if chat else ROUTE
        body = route.body(Ask("hi", 3))
        found = [await ask(pool, route, body, 0.0, asyncio.get_running_loop().time, timeout_s) for _ in range(times)]
        pool.close()
        return found

    return asyncio.run(main())


def the_only(reply: Reply) -> Outcome:
    with scripted(reply) as server:
        (outcome,) = call(server)
    return outcome


@pytest.mark.parametrize("chat", [False, True])
def test_a_good_stream_is_counted_by_its_usage_and_timed_by_its_text(chat: bool) -> None:
    with scripted(stream(4, num_prompt=7, cached=3, chat=chat, pause_s=0.01)) as server:
        (outcome,) = call(server, chat=chat)
    assert outcome.error is None
    assert (outcome.status, outcome.num_prompt, outcome.num_output, outcome.num_cached) == (200, 7, 4, 3)
    assert len(outcome.times_s) == 4, "a chat's first event has no text"
    assert outcome.sent_s < outcome.times_s[0]
    assert outcome.times_s == sorted(outcome.times_s)
    assert sum(outcome.gaps_s) == pytest.approx(3 * outcome.tpot_s)


def test_pieces_are_counted_where_no_usage_is_told() -> None:
    assert the_only(stream(5, usage=False)).num_output == 5


@given(st.data())
def test_an_answer_is_the_same_however_it_is_cut(data: st.DataObject) -> None:
    """Whole events, half events, line ends of both kinds, comments between: pieces of any length."""
    body = b": a comment\n" + b"".join(stream(3).pieces)
    if data.draw(st.booleans()):
        body = body.replace(b"\n", b"\r\n")
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    outcome = Outcome(0.0)
    answer = Answer(outcome)
    clock = count()
    connection = Connection(lambda: float(next(clock)))

    async def main() -> bool:
        connection.connection_made(Wire())
        done = connection.ask(b"", answer)
        for begin, end in zip([0, *cuts], [*cuts, len(whole)]):
            connection.data_received(whole[begin:end])
        return await done

    assert asyncio.run(main())
    answer.close()
    assert outcome.error is None
    assert (outcome.num_prompt, outcome.num_output, outcome.num_cached, len(outcome.times_s)) == (5, 3, 2, 3)


class Wire(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not data

    def close(self) -> None:
        pass


GOOD = stream(3).pieces
FAILURES = {
    "an error event after text": (Reply([*GOOD[:2], event({"error": {"message": "no memory"}}), b"data: [DONE]\n\n"]), "no memory"),
    "an error event alone": (Reply([event({"error": {"message": "bad", "code": 500}}), b"data: [DONE]\n\n"]), "bad"),
    "an error event of the older form": (Reply([event({"object": "error", "message": "older"}), b"data: [DONE]\n\n"]), "older"),
    "a finish reason that is none": (Reply([event({"choices": [{"text": "a", "finish_reason": "abort"}]}), GOOD[-1]]), "abort"),
    "no end": (Reply(GOOD[:2]), "without an end"),
    "no token": (Reply([b"data: [DONE]\n\n"]), "no token"),
    "half an answer": (Reply(GOOD[:2], cut=True), "closed"),
    "what is no event": (Reply([b"data: {nonsense\n\n", *GOOD]), "cannot be read"),
    "status 200 and no stream": (Reply([b'{"error": {"message": "not a stream"}}'], sized=True), "not a stream"),
    "a refusal": (Reply([b'{"error": {"message": "queue full"}}'], 429, sized=True), "status 429: queue full"),
    "a page of a proxy": (Reply([b"<h1>Bad gateway</h1>"], 502, sized=True), "Bad gateway"),
    "no HTTP": (Reply([b"x"], 99999), "HTTP"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_is_no_answer_counts_as_failed(name: str) -> None:
    reply, says = FAILURES[name]
    outcome = the_only(reply)
    assert outcome.error is not None
    assert says in outcome.error


def test_a_body_may_end_with_the_connection() -> None:
    assert the_only(Reply(GOOD, until_close=True)).error is None


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (outcome,) = call(None, port=free.getsockname()[1])
    assert outcome.error is not None
    assert outcome.error.startswith("connection: ")


def test_a_request_that_never_ends_is_given_up() -> None:
    with scripted(stream(3, pause_s=30)) as server:
        (outcome,) = call(server, timeout_s=0.1)
    assert outcome.error == "no end within 0.1 s"


def test_connections_are_kept_unless_they_broke() -> None:
    with scripted(stream()) as server:
        assert [one.error for one in call(server, times=3)] == [None] * 3
        assert server.num_connections == 1
    with scripted(lambda body, number: Reply(GOOD[:1], cut=True) if number == 1 else stream()) as server:
        assert [one.error is None for one in call(server, times=3)] == [True, False, True]
        assert server.num_connections == 2


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/v1/", Address("127.0.0.1", 8000)),
        ("localhost:9", Address("localhost", 9)),
        ("https://a.example/models/v1", Address("a.example", 443, "/models", True)),
        ("http://[::1]:80", Address("::1", 80)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["", "ftp://a", "http://:80", "http://a:b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError):
        Address.parse(url)


def test_a_header_cannot_smuggle_another() -> None:
    with pytest.raises(ValueError, match="characters"):
        Pool(Address("h", 1), {"a": "b\r\nc: d"})
