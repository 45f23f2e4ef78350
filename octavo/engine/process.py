"""The engine process, as a child of the front: started from a command line, told what to build on its standard input.

Life and death: the parent holds the write end of the child's standard input, and the child ends when that closes, so it cannot outlive its
parent however that ends. The child holds the write end of a status pipe: one JSON line for each stage of the start, "ready" or "error", and
its closing tells the parent that the child is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True)
class Start:
    """What the parent sends: `build` is "module:function", called as `build(*args)` in the child and given to the engine's server."""

    build: str
    args: tuple[Any, ...]
    address: str  # where the engine's ROUTER socket is bound


@dataclass(frozen=True)
class Child:
    """A started engine process, seen by its parent."""

    process: subprocess.Popen[bytes]
    status_fd: int  # read end: JSON lines, then end of file when the child is gone
    address: str

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def spawn(build: str, args: tuple[Any, ...], prefix: Sequence[str] = ()) -> Child:
    """Start an engine process. `prefix` goes before the interpreter on its command line (numactl)."""
    folder = tempfile.mkdtemp(prefix="octavo-")
    address = f"ipc://{folder}/engine"
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "octavo.engine.process", str(write_fd)],
        stdin=subprocess.PIPE,
        pass_fds=(write_fd,),
    )
    os.close(write_fd)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; the status pipe says so
        process.stdin.write(pickle.dumps(Start(build, args, address)))
        process.stdin.flush()
    return Child(process, read_fd, address)


def die_with_parent(stdin: BinaryIO) -> None:
    """End this process when its parent is gone. The kernel's parent-death signal is not used: it fires when the starting *thread* ends."""

    def watch() -> None:
        while stdin.read(1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class Status:
    """The child's end of the status pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, kind: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"kind": kind, **fields}).encode() + b"\n")


def resolve_name(path: str) -> Callable[..., Any]:
    import importlib

    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    status = Status(int(sys.argv[1]))
    stdin = sys.stdin.buffer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C too and decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start: Start = pickle.load(stdin)
    die_with_parent(stdin)
    try:
        from octavo.engine.server import EngineServer

        server = EngineServer(start.address)
        loop, info = resolve_name(start.build)(*start.args, server.outbox)
        status.say("ready", info=info)
        server.run(loop)
    except BaseException as error:
        traceback.print_exc()
        status.say("error", error=f"{type(error).__name__}: {error}")
        os._exit(1)
    finally:
        address = start.address.removeprefix("ipc://")
        Path(address).unlink(missing_ok=True)
        if Path(address).parent.name.startswith("octavo-"):
            Path(address).parent.rmdir()
    os._exit(0)  # no interpreter shutdown: device runtimes and thread teams have nothing left to say


if __name__ == "__main__":
    main()
