"""The worker processes of one host: messages go out to each through shared memory, outcomes come back from the last rank of all."""

from __future__ import annotations

import pickle
import platform
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from octavo.core.plan import StepOutput
from octavo.engine.board import Board
from octavo.engine.executor import Outcome, PartyLost, StepFuture, outcome_bytes
from octavo.engine.inline import Worker
from octavo.engine.process import ANYWHERE, Child, Status, Word, end_with, first_word, function_at, spawn
from octavo.host.place import Place

Message = tuple[str, Any, Any]  # "step", "forward" or "sample", the plan, the masks of "sample"; or "order", its name, its arguments


@dataclass(frozen=True)
class Rank:
    """One worker process, seen by who started it."""

    number: int
    child: Child
    link: Connection


class Workers:
    """Starts a process for each of `ranks`, by default all `num_ranks`, with what `build` ("module:function") makes as
    `build(rank, *args) -> (worker, what to tell)`."""

    def __init__(
        self, build: str, args: tuple[Any, ...], num_ranks: int = 1, ranks: range | None = None, places: Sequence[Place] = ()
    ) -> None:
        """`places` says where the processes run, one for each of `ranks`."""
        numbers = range(num_ranks) if ranks is None else ranks
        self._board = Board(len(numbers))
        self._closed = False
        self._told: dict[int, Any] = {}
        self.ranks = [
            _start(number, place, self._board, len(numbers), num_ranks, build, args, places[place] if places else ANYWHERE)
            for place, number in enumerate(numbers)
        ]

    @property
    def told(self) -> list[Any] | None:
        """What each `build` tells of its worker, once all have."""
        return [self._told[rank.number] for rank in self.ranks] if len(self._told) == len(self.ranks) else None

    @property
    def doors(self) -> Sequence[Any]:
        return [door for rank in self.ranks for door in (rank.link, rank.child.status_fd)]

    def tell(self, data: bytes) -> None:
        place = self._board.write(data, self._wait_for_readers)
        for rank in self.ranks:
            try:
                rank.link.send_bytes(place)
            except OSError:
                raise PartyLost from None

    def hear(self, ready: Collection[Any]) -> Sequence[bytes]:
        outcomes: list[bytes] = []
        for rank in self.ranks:
            if rank.link in ready:
                try:
                    data = rank.link.recv_bytes()
                except (EOFError, OSError):
                    raise PartyLost from None
                if rank.number in self._told:
                    outcomes.append(data)
                else:
                    self._told[rank.number] = pickle.loads(data)
        if not outcomes:
            self._look_for_the_dead(ready)
        return outcomes

    def word(self) -> Word | None:
        found = first_word([rank.child for rank in self.ranks])
        return found and found[1].of(f"worker {self.ranks[found[0]].number}")

    def progress(self) -> str:
        found: list[str] = []
        for place, rank in enumerate(self.ranks):
            told, launched = self._board.progress(place)
            doing = f"has launched step {launched} and waits for its end" if launched == told else f"launches step {told}"
            found.append(f"worker {rank.number} (process {rank.child.process.pid}) {doing}")
        return f"on host {platform.node()}: {'; '.join(found)}"

    def close(self, why: str | None = None) -> None:
        if not self._closed:
            self._closed = True
            for rank in self.ranks:
                rank.child.kill()
                rank.link.close()
            self._board.close()

    def _wait_for_readers(self) -> None:
        self._look_for_the_dead(wait([rank.child.status_fd for rank in self.ranks], timeout=0.001))

    def _look_for_the_dead(self, ready: Collection[Any]) -> None:
        if any(rank.child.status_fd in ready for rank in self.ranks):
            raise PartyLost


def _start(
    number: int, place: int, board: Board, num_here: int, num_ranks: int, build: str, args: tuple[Any, ...], where: Place
) -> Rank:
    ours, theirs = socket.socketpair()
    fds = (theirs.fileno(), board.fd)
    child = spawn("octavo.engine.workers:run_worker", *fds, (number, place, num_here, num_ranks), build, args, place=where, fds=fds)
    theirs.close()
    return Rank(number, child, Connection(ours.detach()))


def run_worker(status: Status, fd: int, board_fd: int, who: tuple[int, int, int, int], build: str, args: tuple[Any, ...]) -> None:
    """The worker's process: launches each plan as it comes. On the last rank a second thread waits for outcomes and sends them in order.

    `who`: its rank, its place among those of this host, how many those are, and how many ranks there are in all.
    """
    number, place, num_here, num_ranks = who
    link, board = Connection(fd), Board(num_here, board_fd)
    worker, told = function_at(build)(number, *args)
    link.send_bytes(pickle.dumps(told))
    alone, launched = num_ranks == 1, SimpleQueue[StepFuture]()
    reports = number == num_ranks - 1
    if reports:
        threading.Thread(target=_send_outcomes, args=(worker, launched, link, status, alone), name="outcomes", daemon=True).start()
    failed: Raised | None = None  # forward half, whose outcome is told when the second half comes: a plan has one
    while True:
        try:
            message: Message = pickle.loads(board.read(place, link.recv_bytes()))
        except EOFError:
            worker.close()
            return
        if message[0] == "order":  # no outcome of a step is under way, so every rank may answer
            link.send_bytes(outcome_bytes(_obey(worker, *message[1:])))
            continue
        board.note(place, told=message[1].step)
        try:
            future = failed or _launch(worker, message)
            board.note(place, launched=message[1].step)
        except Exception as error:
            if not alone:  # the others wait for this rank in a collective
                raise
            future = Raised(error)
        failed = future if message[0] == "forward" and isinstance(future, Raised) else None
        if reports and future is not None and failed is None:
            launched.put(future)


def _obey(worker: Worker, name: str, args: tuple[Any, ...]) -> Outcome:
    try:
        worker.orders[name](*args)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
    return True, ""


def _launch(worker: Worker, message: Message) -> StepFuture | None:
    kind, plan, masks = message
    if kind == "step":
        return worker.step(plan)
    if kind == "forward":
        return worker.forward(plan)
    return worker.sample(plan, masks)


@dataclass(frozen=True)
class Raised:
    """The future of a step that could not even be launched."""

    error: Exception

    def result(self) -> StepOutput:
        raise self.error


def _send_outcomes(worker: Worker, launched: SimpleQueue[StepFuture], link: Connection, status: Status, alone: bool) -> None:
    worker.enter_thread()
    while True:
        future = launched.get()
        try:
            outcome: Outcome = (True, future.result())
        except Exception as error:
            if not alone:
                end_with(status, error)
            outcome = (False, f"{type(error).__name__}: {error}")
        try:
            link.send_bytes(outcome_bytes(outcome))
        except OSError:
            return
