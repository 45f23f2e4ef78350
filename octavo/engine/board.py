"""Memory that an engine and its workers share: plans, written once for all, and how far each rank is.

A plan's bytes lie in a ring; where, each rank is told over its socket, and when it has read them it says so here, so that the writer knows
what may be written over. Nobody spins.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable

RING_BYTES = 8 << 20
RECORD = struct.Struct("<QQQ")  # of a rank: bytes read so far, the step it was told last, the step it launched last
PLACE = struct.Struct("<QQ")  # of a message: bytes written before it, its own


class Board:
    """One process's view. The engine makes it; a worker opens it by the descriptor it was given."""

    def __init__(self, num_ranks: int, fd: int | None = None, ring_bytes: int = RING_BYTES) -> None:
        self.fd = os.memfd_create("octavo-board") if fd is None else fd
        self._records_bytes = num_ranks * RECORD.size
        self._ring_bytes, self._num_ranks = ring_bytes, num_ranks
        if fd is None:
            os.ftruncate(self.fd, self._records_bytes + ring_bytes)
        self._memory = mmap.mmap(self.fd, self._records_bytes + ring_bytes)
        self._written = 0

    def write(self, data: bytes, wait: Callable[[], None]) -> bytes:
        """Put a message down for all ranks; what each must be sent to find it. `wait` is called while a rank has not read enough yet.

        A message larger than the ring is itself what to send.
        """
        if len(data) > self._ring_bytes:
            return b"!" + data
        start = self._written
        if start % self._ring_bytes + len(data) > self._ring_bytes:  # a message is never in two pieces
            start += self._ring_bytes - start % self._ring_bytes
        while (read := min(self._read(rank) for rank in range(self._num_ranks))) < self._written:
            if start + len(data) - read <= self._ring_bytes:
                break
            wait()
        at = self._records_bytes + start % self._ring_bytes
        self._memory[at : at + len(data)] = data
        self._written = start + len(data)
        return PLACE.pack(start, len(data))

    def read(self, rank: int, sent: bytes) -> bytes:
        """The message that a rank was sent the place of."""
        if sent[:1] == b"!" and len(sent) != PLACE.size:
            return sent[1:]
        start, length = PLACE.unpack(sent)
        at = self._records_bytes + start % self._ring_bytes
        message = self._memory[at : at + length]
        struct.pack_into("<Q", self._memory, rank * RECORD.size, start + length)
        return message

    def note(self, rank: int, told: int | None = None, launched: int | None = None) -> None:
        """How far a rank is, in steps."""
        for at, value in ((8, told), (16, launched)):
            if value is not None:
                struct.pack_into("<Q", self._memory, rank * RECORD.size + at, value)

    def progress(self, rank: int) -> tuple[int, int]:
        """The steps that a rank was told and has launched last."""
        return RECORD.unpack_from(self._memory, rank * RECORD.size)[1:]

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def _read(self, rank: int) -> int:
        return struct.unpack_from("<Q", self._memory, rank * RECORD.size)[0]
