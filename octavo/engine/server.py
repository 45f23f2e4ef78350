"""The engine's side of the wire: runs the loop, takes commands from any number of fronts and sends each its own news."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from octavo.engine.channel import News, decode_command, encode_answer
from octavo.engine.drive import CHECK_EVERY_S, Loop, drive
from octavo.engine.messages import Abort, Add, Ask, Command, Finish
from octavo.engine.process import Status, function_at
from octavo.host.collector import collect_seldom
from octavo.host.heap import share_heap
from octavo.types import SequenceOutput

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, and which of its continuations have not ended."""

    front: bytes  # identity of the socket
    number: int  # the front's, for its first continuation
    open: set[int]


class WireOutbox:
    """Sends news to the front that a request came from. What a front wanted that has left is `unwanted`; the others do not notice."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._requests: dict[str, Origin] = {}  # by id, while news of it can follow
        self._askers: dict[str, bytes] = {}  # question id -> identity of its front
        self.unwanted: list[Command] = []

    def arrived(self, front: bytes, command: Command) -> None:
        """Note whose command this is, before the loop handles it."""
        match command:
            case Add(request, number):
                self._requests[request.id] = Origin(front, number, set(range(request.params.n)))
            case Ask(ask_id):
                self._askers[ask_id] = front
            case Abort(request_id):
                self._requests.pop(request_id, None)
            case Finish(request_id, index):
                self._ended(request_id, index)
            case _:
                pass

    def send(self, outputs: Sequence[SequenceOutput]) -> None:
        by_front: dict[bytes, News] = {}
        for output in outputs:
            origin = self._requests.get(output.request_id)
            if origin is None:
                continue
            news = by_front.get(origin.front)
            if news is None:
                news = by_front[origin.front] = News()
            news.add(origin.number + output.index, output)
            if output.finish_reason is not None:
                self._ended(output.request_id, output.index)
        for front, news in by_front.items():
            self._send(front, news.encoded())

    def answer(self, ask: Ask, value: object) -> None:
        self._send(self._askers.pop(ask.id), encode_answer(ask.id, value))

    def _send(self, front: bytes, data: bytes) -> None:
        try:
            self._socket.send_multipart([front, data])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            gone = [request_id for request_id, origin in self._requests.items() if origin.front == front]
            self.unwanted += [Abort(request_id) for request_id in gone]
            for request_id in gone:
                del self._requests[request_id]
            self._askers = {question: asker for question, asker in self._askers.items() if asker != front}

    def _ended(self, request_id: str, index: int) -> None:
        """By the engine or by the front; by both, when their words cross on the way."""
        origin = self._requests.get(request_id)
        if origin is not None:
            origin.open.discard(index)
            if not origin.open:
                del self._requests[request_id]


class EngineServer:
    """Owns the socket and runs the loop in the calling thread until told to stop."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # say so where a front is gone
        self._socket.bind(address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)  # with the port, where any would do
        self._poller = zmq.Poller()
        self.outbox = WireOutbox(self._socket)

    def run(self, loop: Loop) -> None:
        for fd in (self._socket, *loop.wakes):
            self._poller.register(fd, zmq.POLLIN)
        drive(loop, self._receive)
        self._socket.close()
        self._context.term()

    def _receive(self, wait: bool) -> list[Command]:
        """All commands that have arrived; with `wait`, blocks a while until there is one."""
        commands, self.outbox.unwanted = self.outbox.unwanted, []
        if wait:
            self._poller.poll(int(CHECK_EVERY_S * 1000))
        while True:
            try:
                front, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return commands
            try:
                command = decode_command(data)
            except Exception:  # a front of another version, or a bug there: nobody else's request suffers
                log.exception("a command of %d bytes could not be read and is ignored", len(data))
                continue
            self.outbox.arrived(front, command)
            commands.append(command)


def run_engine(status: Status, address: str, build: str, args: tuple[Any, ...]) -> None:
    """The engine's process: `build` ("module:function") makes the loop from `args` and an outbox."""
    share_heap()
    server = EngineServer(address)
    loop, info = function_at(build)(*args, server.outbox)
    collect_seldom()
    status.say("ready", info=info, address=server.address)
    server.run(loop)
