"""A server in a process of its own, as a benchmark needs it: its address, its processes, and what they hold."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

STOP_S = 60.0
LINES = 200  # of the log, for when something goes wrong


@dataclass(frozen=True)
class Server:
    url: str
    process: subprocess.Popen[str]
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))

    def resident_bytes(self) -> dict[str, int]:
        """Memory of each of its processes, by what the process is."""
        return {_name(pid): _resident_bytes(pid) for pid in descendants(self.process.pid)}

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)


@contextmanager
def server(command: Sequence[str]) -> Iterator[Server]:
    """Run `python COMMAND` until it says that it is ready. Raises RuntimeError with its log if it ends before."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log: deque[str] = deque(maxlen=LINES)
    try:
        for line in process.stderr:
            log.append(line)
            if ready := re.search(r"ready on (http://\S+?),", line):
                break
        else:
            raise RuntimeError(f"the server did not start:\n{''.join(log)}")
        threading.Thread(target=log.extend, args=(process.stderr,), daemon=True).start()
        yield Server(ready[1], process, log)
    finally:
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    """The process itself first."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def _name(pid: int) -> str:
    return f"{'engine' if 'octavo.engine.process' in Path(f'/proc/{pid}/cmdline').read_text() else 'front'} {pid}"


def _resident_bytes(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 0 if found is None else 1024 * int(found[1])
