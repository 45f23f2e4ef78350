"""A progress bar on one line of the terminal: how many of how many, how fast, how long still."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

REDRAW_S = 0.2


class Progress:
    """Drawn only on a terminal, and at most five times a second."""

    def __init__(self, total: int, unit: str, shown: bool = True, stream: TextIO | None = None) -> None:
        self.total, self.unit, self.done = total, unit, 0
        self._stream = stream or sys.stderr
        self._shown = shown and self._stream.isatty()
        self._begin_s = self._drawn_s = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            self._draw()
            self._stream.write("\n")

    def advance(self, count: int = 1) -> None:
        self.done += count
        if self._shown and time.monotonic() - self._drawn_s > REDRAW_S:
            self._draw()

    def line(self, elapsed_s: float) -> str:
        rate = self.done / elapsed_s if elapsed_s > 0 else 0.0
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate > 0 else "no rate yet"
        filled = 30 * self.done // max(self.total, 1)
        return f"[{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total} {self.unit}, {rate:.1f}/s, {left}"

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._stream.write("\r" + self.line(self._drawn_s - self._begin_s))
        self._stream.flush()
