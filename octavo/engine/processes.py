"""Workers in processes of their own: plans go out to every rank through shared memory, the outcome comes back from the last one.

A rank that ends takes the group down within moments: whoever waits for a step gets `ExecutorDead` with that rank's own first error.
"""

from __future__ import annotations

import pickle
import platform
import socket
import threading
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from octavo import env
from octavo.core.plan import Plan, StepOutput
from octavo.engine.board import Board
from octavo.engine.executor import ExecutorDead, StepFuture
from octavo.engine.inline import Worker
from octavo.engine.process import ANYWHERE, Child, Status, end_with, first_word, function_at, spawn
from octavo.host.place import Place

Message = tuple[str, Plan, Any]  # "step", "forward" or "sample", the plan, the masks of "sample"
Outcome = tuple[bool, Any]  # (True, StepOutput), or (False, text of what the step raised)


class StepFailed(RuntimeError):
    """A step raised in its worker, which goes on."""


@dataclass(frozen=True)
class Rank:
    """One worker process, seen by the engine."""

    number: int
    child: Child
    link: Connection


class ProcessExecutor:
    """Starts `num_ranks` workers, each made by `build` ("module:function") as `build(rank, *args) -> (worker, what to tell)`."""

    def __init__(
        self, build: str, args: tuple[Any, ...], num_ranks: int = 1, places: Sequence[Place] = (), keep: object = None
    ) -> None:
        """`places[rank]` is where the rank's process runs. `keep` lives as long as the workers."""
        self._keep = keep
        self._board = Board(num_ranks)
        self._closed = False
        self._ranks = [
            _start(number, num_ranks, self._board, build, args, places[number] if places else ANYWHERE) for number in range(num_ranks)
        ]
        self._sampler = self._ranks[-1]
        self._pending: deque[RemoteStep] = deque()
        self.told = [self._receive(rank, None) for rank in self._ranks]  # what each `build` tells of its worker

    def submit(self, plan: Plan) -> StepFuture:
        self._tell(("forward" if plan.masked else "step", plan, None))
        step = RemoteStep(self)
        self._pending.append(step)
        return step

    def sample(self, plan: Plan, masks: Sequence[bytes | None]) -> None:
        self._tell(("sample", plan, masks))

    def check(self) -> None:
        self._look_for_the_dead(wait([rank.child.status_fd for rank in self._ranks], timeout=0))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for rank in self._ranks:
                rank.child.kill()
                rank.link.close()
            self._board.close()

    def receive(self, step: RemoteStep) -> Outcome:
        """The outcome of a step; those of earlier steps come first and are kept for them."""
        while step.outcome is None:
            self._pending.popleft().outcome = self._receive(self._sampler, env.STEP_TIMEOUT.get())
        return step.outcome

    def _tell(self, message: Message) -> None:
        place = self._board.write(message, self._wait_for_readers)
        for rank in self._ranks:
            try:
                rank.link.send_bytes(place)
            except OSError:
                raise self._dead() from None

    def _wait_for_readers(self) -> None:
        self._look_for_the_dead(wait([rank.child.status_fd for rank in self._ranks], timeout=0.001))

    def _receive(self, rank: Rank, timeout_s: float | None) -> Any:
        """The next message of one rank, while all are watched: their status pipes are silent as long as they are well."""
        while True:
            ready = wait([rank.link, *(other.child.status_fd for other in self._ranks)], timeout_s)
            if not ready:
                raise self._stuck(timeout_s)
            if rank.link in ready:
                try:
                    return pickle.loads(rank.link.recv_bytes())
                except (EOFError, OSError):
                    raise self._dead() from None
            self._look_for_the_dead(ready)

    def _stuck(self, timeout_s: float | None) -> ExecutorDead:
        """No outcome came for so long: how far each rank is."""
        found: list[str] = []
        for rank in self._ranks:
            told, launched = self._board.progress(rank.number)
            doing = f"has launched step {launched} and waits for its end" if launched == told else f"launches step {told}"
            found.append(f"worker {rank.number} (process {rank.child.process.pid}) {doing}")
        self.close()
        return ExecutorDead(f"no outcome within {timeout_s:g} s on host {platform.node()}: {'; '.join(found)}")

    def _look_for_the_dead(self, ready: Collection[object]) -> None:
        if any(rank.child.status_fd in ready for rank in self._ranks):
            raise self._dead()

    def _dead(self) -> ExecutorDead:
        number, word = first_word([rank.child for rank in self._ranks])
        self.close()
        return ExecutorDead(f"worker {number}: {word}")


class RemoteStep:
    """A step under way in other processes."""

    def __init__(self, executor: ProcessExecutor) -> None:
        self._executor = executor
        self.outcome: Outcome | None = None

    def result(self) -> StepOutput:
        good, value = self._executor.receive(self)
        if not good:
            raise StepFailed(value)
        return value


def _start(number: int, num_ranks: int, board: Board, build: str, args: tuple[Any, ...], place: Place) -> Rank:
    ours, theirs = socket.socketpair()
    target = "octavo.engine.processes:run_worker"
    fds = (theirs.fileno(), board.fd)
    child = spawn(target, *fds, number, num_ranks, build, args, place=place, fds=fds)
    theirs.close()
    return Rank(number, child, Connection(ours.detach()))


def run_worker(status: Status, fd: int, board_fd: int, number: int, num_ranks: int, build: str, args: tuple[Any, ...]) -> None:
    """The worker's process: launches each plan as it comes. On the last rank a second thread waits for outcomes and sends them in order."""
    link, board = Connection(fd), Board(num_ranks, board_fd)
    worker, told = function_at(build)(number, *args)
    link.send_bytes(pickle.dumps(told))
    alone, launched = num_ranks == 1, SimpleQueue[StepFuture]()
    reports = number == num_ranks - 1
    if reports:
        threading.Thread(target=_send_outcomes, args=(worker, launched, link, status, alone), name="outcomes", daemon=True).start()
    failed: Raised | None = None  # forward half, whose outcome is told when the second half comes: a plan has one
    while True:
        try:
            message: Message = board.read(number, link.recv_bytes())
        except EOFError:
            worker.close()
            return
        board.note(number, told=message[1].step)
        try:
            future = failed or _launch(worker, message)
            board.note(number, launched=message[1].step)
        except Exception as error:
            if not alone:  # the others wait for this rank in a collective
                raise
            future = Raised(error)
        failed = future if message[0] == "forward" and isinstance(future, Raised) else None
        if reports and future is not None and failed is None:
            launched.put(future)


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
            link.send_bytes(pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError:
            return
