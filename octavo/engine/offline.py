"""An engine as `LLM` drives it, step by step in the caller's thread: in this process, or several replicas in processes of their own."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from octavo.config.resolved import Resolved
from octavo.core.admission import check
from octavo.core.kv.layout import KVLayout
from octavo.core.router import AFFINITY, Load, Router, prefix_names
from octavo.engine.client import EngineDead, together
from octavo.engine.drive import CHECK_EVERY_S, drive
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Add, Ask, Command, Outbox
from octavo.engine.news import pack, unpack
from octavo.engine.process import Child, Status, first_word, function_at, spawn
from octavo.host.collector import collect_seldom
from octavo.types import Request, SequenceOutput


class Offline(Protocol):
    """What `LLM` needs of an engine."""

    def handle(self, commands: Sequence[Command]) -> None: ...

    def step(self) -> None:
        """Get on: news go to the outbox."""
        ...

    def admit(self, request: Request) -> None:
        """Raise `InvalidRequest` for what can never run here, with the numbers."""
        ...

    def ask(self, what: str, *args: Any) -> Any:
        """The answer to a question as in `Ask`; of several replicas, of all together."""
        ...

    def close(self) -> None: ...


class Collected:
    """An outbox that keeps the news until it is taken."""

    def __init__(self) -> None:
        self.news: list[SequenceOutput] = []
        self.answers: dict[str, Any] = {}

    def send(self, outputs: Sequence[SequenceOutput]) -> None:
        self.news.extend(outputs)

    def answer(self, ask: Ask, value: object) -> None:
        self.answers[ask.id] = value

    def take(self) -> list[SequenceOutput]:
        news, self.news = self.news, []
        return news


class Word(NamedTuple):
    """What a replica says after a step, of what happened in it."""

    news: list[tuple[Any, ...]]  # packed
    answers: dict[str, Any]  # by the question's id
    load: Load
    num_received: int  # requests since the start


class Replicas:
    """Several engines, each in its process, behind a router. One that ends takes all with it."""

    def __init__(self, build: str, args: Sequence[tuple[Any, ...]], outbox: Outbox, keep: Child | None = None) -> None:
        """`build` ("module:function") makes an engine as `build(*args[i], outbox) -> (loop, info)`. `keep`: a process that they need, ended
        with them. Raises `EngineDead`."""
        self._keep = keep
        self._outbox = outbox
        self._children: list[Child] = []
        self._links: list[Connection] = []
        for one in args:
            ours, theirs = socket.socketpair()
            self._children.append(spawn("octavo.engine.offline:run_replica", theirs.fileno(), build, one, fds=(theirs.fileno(),)))
            theirs.close()
            self._links.append(Connection(ours.detach()))
        self._word: str | None = None  # the first one's, when all have ended
        self._asks = 0
        self._answers: list[dict[str, Any]] = [{} for _ in args]
        told: list[tuple[dict[str, Any], Resolved, KVLayout]] = [self._receive(i) for i in range(len(args))]
        self.info = told[0][0]
        _, self._settings, self._layout = min(told, key=lambda one: one[2].num_blocks)
        self._router = Router(len(args), AFFINITY)

    def handle(self, commands: Sequence[Command]) -> None:
        """Requests go where there is least to do; what is said of them goes to all, and whom it does not concern does nothing."""
        by_replica: list[list[Command]] = [[] for _ in self._links]
        for command in commands:
            if isinstance(command, Add):
                request = command.request
                names = prefix_names(request.prompt_token_ids, self._settings.block_size, request.cache_salt)
                by_replica[self._router.choose(len(request.prompt_token_ids), names)].append(command)
            else:
                for own in by_replica:
                    own.append(command)
        for i, own in enumerate(by_replica):
            if own:
                self._send(i, own)

    def step(self) -> None:
        """Wait for the next word of any replica."""
        ready = wait([*self._links, *(child.status_fd for child in self._children)])
        if not any(link in ready for link in self._links):
            raise self._dead()
        for i, link in enumerate(self._links):
            if link in ready:
                word: Word = self._receive(i)
                self._router.report(i, word.load, word.num_received)
                self._answers[i].update(word.answers)
                self._outbox.send([unpack(item) for item in word.news])

    def admit(self, request: Request) -> None:
        check(request, self._settings, self._layout)

    def ask(self, what: str, *args: Any) -> Any:
        self._asks += 1
        name = str(self._asks)
        self.handle([Ask(name, what, args)])
        while not all(name in answers for answers in self._answers):
            self.step()
        return together([answers.pop(name) for answers in self._answers])

    def close(self) -> None:
        for child, link in zip(self._children, self._links):
            child.kill()
            link.close()
        if self._keep is not None:
            self._keep.kill()

    def _send(self, i: int, commands: Sequence[Command]) -> None:
        try:
            self._links[i].send_bytes(pickle.dumps(commands, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise self._dead() from None

    def _receive(self, i: int) -> Any:
        try:
            return pickle.loads(self._links[i].recv_bytes())
        except (EOFError, OSError):
            raise self._dead() from None

    def _dead(self) -> EngineDead:
        """Why all have ended: the same word however often it is asked for."""
        if self._word is None:
            found = first_word(self._children)
            assert found is not None, "one of them has ended"
            self._word = found[1].of(f"engine {found[0]}").text
            self.close()
        return EngineDead(self._word)


class Desk:
    """A replica's side: commands come by a thread, so that whoever sends them never waits for a step; news leave between steps."""

    def __init__(self, link: Connection, loop: EngineLoop, outbox: Collected) -> None:
        self._link, self._loop, self._outbox = link, loop, outbox
        self._arrived: SimpleQueue[list[Command] | None] = SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)  # rings when something has arrived
        self._num_received = 0
        self._told = Load()
        threading.Thread(target=self._listen, name="commands", daemon=True).start()

    def receive(self, wait_for_some: bool) -> list[Command]:
        self._tell()
        if wait_for_some:
            wait([self._bell, *self._loop.wakes], CHECK_EVERY_S)
        commands: list[Command] = []
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return commands
        while not self._arrived.empty():
            commands += self._next()
        return commands

    def _next(self) -> list[Command]:
        arrived = self._arrived.get()
        if arrived is None:
            raise EOFError("the front has left")
        self._num_received += sum(isinstance(command, Add) for command in arrived)
        return arrived

    def _tell(self) -> None:
        outbox, load = self._outbox, self._loop.scheduler.load
        if outbox.news or outbox.answers or load != self._told:
            answers, outbox.answers = outbox.answers, {}
            word = Word([pack(output) for output in outbox.take()], answers, load, self._num_received)
            self._link.send_bytes(pickle.dumps(word, protocol=pickle.HIGHEST_PROTOCOL))
            self._told = load

    def _listen(self) -> None:
        try:
            while True:
                self._put(pickle.loads(self._link.recv_bytes()))
        except (EOFError, OSError):
            self._put(None)

    def _put(self, arrived: list[Command] | None) -> None:
        self._arrived.put(arrived)
        os.eventfd_write(self._bell, 1)


def run_replica(status: Status, fd: int, build: str, args: tuple[Any, ...]) -> None:
    """A replica's process."""
    link, outbox = Connection(fd), Collected()
    loop, info = function_at(build)(*args, outbox)
    collect_seldom()
    link.send_bytes(pickle.dumps((info, loop.scheduler.settings, loop.scheduler.cache.layout)))
    drive(loop, Desk(link, loop, outbox).receive)
