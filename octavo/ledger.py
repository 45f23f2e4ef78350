"""Numbers that several processes count together, in memory that they share: each writes a row of its own, and anyone sums over all rows.

So no process waits for another, neither who counts nor who reads. All lay their rows out alike, because they take their cells in one order.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

ROW_BYTES = 4 << 20  # taken from the machine as it is written to
CELL_BYTES = 8


class Ledger:
    """One process's view. The first process makes it; another opens it by the descriptor that it was given, for its own row."""

    def __init__(self, num_rows: int = 1, row: int = 0, fd: int | None = None) -> None:
        self.row, self.num_rows = row, num_rows
        self.fd = fd if fd is not None else _memory(num_rows) if num_rows > 1 else -1  # of one process: memory that nobody else can open
        memory = memoryview(mmap.mmap(self.fd, num_rows * ROW_BYTES))
        self._rows = [memory[number * ROW_BYTES : (number + 1) * ROW_BYTES] for number in range(num_rows)]
        self._taken = 0

    def whole(self, count: int) -> Cells:
        """The next cells, for whole numbers. All are 0."""
        return Cells(self._take(count, "q"), self.row)

    def real(self, count: int) -> Cells:
        return Cells(self._take(count, "d"), self.row)

    def common(self, count: int) -> memoryview[Any]:
        """Cells for real numbers of which there is one row for all. Of two that write at once, one wins."""
        return self._take(count, "d")[0]

    def _take(self, count: int, kind: Literal["q", "d"]) -> list[memoryview[Any]]:
        begin, self._taken = self._taken, self._taken + count * CELL_BYTES
        assert self._taken <= ROW_BYTES, f"there is room for {ROW_BYTES // CELL_BYTES} numbers"
        return [row[begin : self._taken].cast(kind) for row in self._rows]


def _memory(num_rows: int) -> int:
    fd = os.memfd_create("octavo-ledger")
    os.ftruncate(fd, num_rows * ROW_BYTES)
    return fd


class Cells:
    """Some numbers: `own` are this process's, to be written."""

    __slots__ = ("_rows", "own")

    def __init__(self, rows: Sequence[memoryview[Any]], row: int) -> None:
        self._rows = rows
        self.own = rows[row]

    def total(self, place: int) -> int:
        """Of all processes."""
        return sum([row[place] for row in self._rows])

    def totals(self) -> list[int]:
        return [sum(column) for column in zip(*self._rows)] if len(self._rows) > 1 else self.own.tolist()


class Counts:
    """Whole numbers by name: added to by each process, read as sums over all."""

    __slots__ = ("_cells", "_places")

    def __init__(self, names: Sequence[str], ledger: Ledger | None = None) -> None:
        self._cells = (ledger or Ledger()).whole(len(names))
        self._places = dict(zip(names, itertools.count()))

    def add(self, name: str, number: int = 1) -> None:
        self._cells.own[self._places[name]] += number

    def __getitem__(self, name: str) -> int:
        return self._cells.total(self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def total(self) -> int:
        return sum(self._cells.totals())

    def items(self) -> Iterator[tuple[str, int]]:
        return zip(self._places, self._cells.totals())
