"""Child processes: started from a command line, told what to run on their standard input.

Life and death: the parent holds the write end of the child's standard input, and the child ends when that closes, so it cannot outlive its
parent however that ends. The child holds the write end of a status pipe: one JSON line for each thing it has to say ("ready", "error"), and
its closing tells the parent that the child is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol

from octavo.host.place import Place
from octavo.logs import start_logging

ANYWHERE = Place()
BEGIN = "import sys; sys.path[:] = sys.argv[2:]; from octavo.engine.process import main; main()"
FIRST_WORD_GRACE_S = 0.5  # after the first death: others that end of it may have been quicker to say so


class Word(NamedTuple):
    """The first error of a process that has ended. Of several words the least is the one that came first."""

    consequence: bool  # it only lost another, which says itself why
    at_s: float  # since the epoch, as hosts share no other clock; 0 where it ended without a word
    text: str

    def of(self, whose: str) -> Word:
        return self._replace(text=f"{whose}: {self.text}")


class Process(Protocol):
    """A started process, here or on another host (`octavo.cluster.replica_hosts`)."""

    @property
    def pid(self) -> int: ...

    @property
    def status_fd(self) -> int:
        """Read end: JSON lines, then end of file when the process is gone."""
        ...

    def stop(self, why: str | None = None) -> None:
        """End it, because of that, and do not wait for it."""
        ...

    def kill(self) -> None:
        """End it."""
        ...

    def end(self) -> str:
        """How it ended, once it has."""
        ...


@dataclass(frozen=True)
class Child:
    """A started process, seen by its parent."""

    process: subprocess.Popen[bytes]
    status_fd: int  # read end: JSON lines, then end of file when the child is gone

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, why: str | None = None) -> None:
        if self.process.poll() is None:
            self.process.kill()

    def kill(self) -> None:
        self.stop()
        self.process.wait()

    def end(self) -> str:
        """How it ended, once it has."""
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"code {code}"

    def last_word(self) -> Word:
        """Its first error; how it ended, if it said nothing. Called when it is ending."""
        text = b""
        while chunk := os.read(self.status_fd, 65536):
            text += chunk
        said = [json.loads(line) for line in text.splitlines()]
        errors = [word_in(one) for one in said if one["kind"] == "error"]
        return errors[0] if errors else Word(False, 0.0, f"its process ended with {self.end()}")


def word_in(said: Mapping[str, Any]) -> Word:
    """That of a process which said "error"."""
    return Word(said["consequence"], said["at_s"], said["error"])


def first_word(children: Sequence[Child]) -> tuple[int, Word] | None:
    """Of those that have ended or are about to, the number and the word of the first; None if there is none."""
    time.sleep(FIRST_WORD_GRACE_S)
    words = {number: child.last_word() for number, child in enumerate(children) if wait([child.status_fd], timeout=0)}
    return min(words.items(), key=lambda item: item[1], default=None)


class Status:
    """The child's end of the status pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, kind: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"kind": kind, "at_s": time.time(), **fields}).encode() + b"\n")


def spawn(target: str, *args: Any, place: Place = ANYWHERE, fds: Sequence[int] = ()) -> Child:
    """Start a process that calls `target` ("module:function") with its `Status` and `args`, which are pickled.

    It is in its `place` before its interpreter runs; `fds` stay open in it under the same numbers. It finds what the parent finds, by the
    same import path, and only after that what lies in the working folder. Raises `PlaceError`.
    """
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-P", "-c", BEGIN, str(write_fd), *sys.path, os.getcwd()]
    process = place.run(
        lambda: subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write_fd, *fds), env=place.environment())
    )
    os.close(write_fd)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; the status pipe says so
        process.stdin.write(pickle.dumps((target, args)))
        process.stdin.flush()
    return Child(process, read_fd)


def function_at(path: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def die_with_parent(stdin: BinaryIO) -> None:
    """End this process when its parent is gone. The kernel's parent-death signal is not used: it fires when the starting *thread* ends."""

    def watch() -> None:
        while stdin.read(1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def end_with(status: Status, error: BaseException) -> NoReturn:
    """Tell the parent, and end this process. An error with a true attribute `consequence` is not the first one."""
    text, consequence = str(error), getattr(error, "consequence", False)
    if not type(error).__module__.startswith("octavo."):  # ours say what is wrong and what works
        with contextlib.suppress(OSError):  # a log that takes no more is no reason to keep the error from the parent
            traceback.print_exception(error)
        text = f"{type(error).__name__}: {error}"
    status.say("error", error=text, consequence=consequence)
    os._exit(1)


def main() -> None:
    """The child's side: build what the parent asked for, run it, and end when the parent does."""
    status = Status(int(sys.argv[1]))
    threading.excepthook = lambda raised: end_with(status, raised.exc_value or RuntimeError(str(raised)))  # who waits for it would hang
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent gets them too and decides what they mean
        signal.signal(number, signal.SIG_IGN)
    target, args = pickle.load(sys.stdin.buffer)
    die_with_parent(sys.stdin.buffer)
    try:
        start_logging()
        function_at(target)(status, *args)
    except BaseException as error:
        end_with(status, error)
    os._exit(0)  # no interpreter shutdown: device runtimes and thread teams have nothing left to say

