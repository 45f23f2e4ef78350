"""The front's side of the wire: an engine in another process, whoever started that, seen from an event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import zmq

from octavo.core.router import Load
from octavo.engine.channel import TOKEN, decode_reply, encode_command
from octavo.engine.client import EngineDead, EngineStats, Reader
from octavo.engine.messages import Abort, Add, Ask, Command, Finish
from octavo.engine.news import as_output
from octavo.types import FinishReason, Request, SequenceOutput

_STATS = frozenset(item.name for item in fields(EngineStats))
Door = tuple[str, Mapping[str, Any]]  # an engine's address, and what it said of itself when it was ready


class Listener:
    """Who reads the news of a request, and the continuations of which some can come."""

    __slots__ = ("number", "open", "reader")

    def __init__(self, reader: Reader, num_continuations: int, number: int = 0) -> None:
        self.reader = reader
        self.number = number  # of the first continuation, which the others' follow
        self.open = set(range(num_continuations))

    def take(self, output: SequenceOutput) -> None:
        if output.index not in self.open:
            return  # it was under way when the front ended the continuation
        if output.finish_reason is not None:
            self.open.discard(output.index)
        self.reader.take(output)


class EngineLink:
    """Speaks to an engine, once it is connected. Whoever knows that the engine has ended calls `lose`."""

    def __init__(self) -> None:
        self.info: Mapping[str, Any] = {}
        self._address = ""
        self._dead: str | None = None
        self._listeners: dict[str, Listener] = {}  # by the request's id
        self._takers: dict[int, Callable[[int], None]] = {}  # of tokens, by the continuation's number
        self._next_number = 0
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        self._looking = False
        self._socket_fd = int(self._socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._socket_fd, self._look)

    def connect(self, address: str, info: Mapping[str, Any]) -> None:
        """The engine is ready there, and says this of itself."""
        self._address, self.info = address, info
        self._socket.connect(address)

    @property
    def dead(self) -> str | None:
        return self._dead

    @property
    def doors(self) -> list[Door]:
        """Where other fronts find it."""
        return [(self._address, self.info)]

    def add(self, request: Request, reader: Reader) -> None:
        self._check_alive()
        assert request.id not in self._listeners, "ids are the front's and unique"
        number, self._next_number = self._next_number, self._next_number + request.params.n
        self._listeners[request.id] = Listener(reader, request.params.n, number)
        self._takers |= {number + index: reader.taker(index) for index in range(request.params.n)}
        self._send(Add(request, number))

    def finish(self, request_id: str, index: int, reason: FinishReason, num_tokens: int) -> None:
        listener = self._listeners.get(request_id)
        if listener is not None:
            self._ended(request_id, listener, index)
        if self._dead is None:
            self._send(Finish(request_id, index, reason, num_tokens))

    def abort(self, request_id: str) -> None:
        if (listener := self._listeners.get(request_id)) is not None:
            for index in list(listener.open):
                self._ended(request_id, listener, index)
        if self._dead is None:
            self._send(Abort(request_id))

    def _ended(self, request_id: str, listener: Listener, index: int) -> None:
        """No news of that continuation follow."""
        listener.open.discard(index)
        self._takers.pop(listener.number + index, None)
        if not listener.open:
            self._listeners.pop(request_id, None)

    def follows(self, request_id: str) -> bool:
        """Whether news of this request can still come."""
        return request_id in self._listeners

    async def stats(self) -> list[EngineStats]:
        return [stats_from(await self._ask("stats"))]

    async def load(self) -> Load:
        """Knows of all that was added before the call."""
        return Load(*await self._ask("load"))

    async def advice(self) -> list[dict[str, Any]]:
        return await self._ask("advice")

    async def reset_prefix_cache(self) -> bool:
        return await self._ask("reset_prefix_cache")

    async def order(self, name: str, *args: Any) -> list[str]:
        return await self._ask(name, *args)

    async def close(self, drain_s: float = 0.0) -> None:
        """Say and hear no more. The engine is whoever's who started it."""
        if self._dead is None:
            self.lose("the engine was closed")
        self._loop.remove_reader(self._socket_fd)
        self._socket.close()
        self._context.term()

    async def _ask(self, what: str, *args: Any) -> Any:
        self._check_alive()
        ask = Ask(uuid.uuid4().hex, what, args)
        answer = self._asked[ask.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(ask)
            return await answer
        finally:
            del self._asked[ask.id]

    def _send(self, command: Command) -> None:
        self._socket.send(encode_command(command), zmq.NOBLOCK)
        self._look()  # the descriptor tells of a change only once, and sending may have seen it

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _look(self) -> None:
        """Read from the socket at the event loop's next turn."""
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        """One message a turn: however far the engine is ahead, clients are heard in between."""
        self._looking = False
        if self._socket.closed:
            return
        try:
            kind, body = decode_reply(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
        self._look()
        if kind == "news":
            self._hand_over(*body)
        else:
            waiting = self._asked.get(body[0])
            if waiting is not None and not waiting.done():
                waiting.set_result(body[1])

    def _hand_over(self, tokens: bytes, rest: list[list[Any]]) -> None:
        taker_of = self._takers.get
        for number, token_id in TOKEN.iter_unpack(tokens):
            if (take := taker_of(number)) is not None:
                take(token_id)
        for item in rest:
            if (listener := self._listeners.get(item[0])) is not None:
                output = as_output(item)
                listener.take(output)
                if output.finish_reason is not None:
                    self._ended(item[0], listener, output.index)

    def lose(self, reason: str) -> None:
        """The engine has ended, and this is what its requests are told."""
        self._dead = reason
        listeners, self._listeners, self._takers = self._listeners, {}, {}
        for listener in listeners.values():
            listener.reader.lost(reason)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(EngineDead(reason))


def stats_from(values: Mapping[str, Any]) -> EngineStats:
    """Named gauges and counters of an engine's answer; those without a field of their own go to `counters`."""
    known = {name: value for name, value in values.items() if name in _STATS}
    further = {name: float(value) for name, value in values.items() if name not in _STATS and isinstance(value, (int, float))}
    return EngineStats(**known, counters=further)
