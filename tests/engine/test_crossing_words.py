"""A continuation that the front and the engine end at the same time ends once, and its siblings go on."""

import asyncio

from octavo.engine.link import Listener
from octavo.engine.messages import Add, Finish
from octavo.engine.remote import RemoteEngine
from octavo.engine.server import WireOutbox
from octavo.types import FinishReason, Request, SamplingParams, SequenceOutput
from tests.engine.reading import Reading, news_of
from tests.engine.test_remote import request, with_engine


def end(index: int) -> SequenceOutput:
    return SequenceOutput("r", index, (7,), finish_reason=FinishReason.LENGTH)


def test_a_late_end_does_not_count_for_a_sibling() -> None:
    reading = Reading()
    listener = Listener(reading, 2)
    listener.take(SequenceOutput("r", 0, (5,)))
    listener.open.discard(0)  # the front found a stop string
    listener.take(end(0))  # the engine had ended it too
    assert listener.open == {1}
    listener.take(end(1))
    assert not listener.open
    assert [reading.news.get_nowait() for _ in range(reading.news.qsize())] == [SequenceOutput("r", 0, (5,)), end(1)]


def test_the_engines_side_keeps_the_front_until_all_have_ended() -> None:
    sent: list[list[bytes]] = []

    class Socket:
        def send_multipart(self, parts: list[bytes]) -> None:
            sent.append(parts)

    outbox = WireOutbox(Socket())  # pyright: ignore
    outbox.arrived(b"front", Add(Request("r", (1,), SamplingParams(n=2))))
    outbox.send([end(0)])
    outbox.arrived(b"front", Finish("r", 0, FinishReason.STOP, 1))
    outbox.send([SequenceOutput("r", 1, (8,))])
    assert len(sent) == 2
    outbox.send([end(1)])
    outbox.send([end(1)])
    assert len(sent) == 3, "nothing follows the last end"


def test_a_slow_reader_gets_the_end_too() -> None:
    async def use(engine: RemoteEngine) -> list[SequenceOutput]:
        got: list[SequenceOutput] = []
        async for news in news_of(engine, request("slow", range(20))):
            got.append(news)
            await asyncio.sleep(0.02)
        return got

    got = with_engine("tests.engine.echo:build", use)
    assert [token for output in got for token in output.token_ids] == list(range(20))
    assert got[-1].finish_reason is FinishReason.STOP
