"""Memory on huge pages, for what is read from end to end again and again: a CPU reads weights half as fast again there."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable

PAGE_BYTES = 2 << 20
COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1 and later: in place of small pages, whatever the system's setting
DELAY_S = 1.0  # fresh memory can be slow to come on a virtual machine (4 ms a page): the first tokens do not wait for it


def move_later(places: Iterable[tuple[int, int]], owner: object, delay_s: float = DELAY_S) -> threading.Timer:
    """Move memory that has been filled to huge pages: pieces of it by address and bytes. A thread does so while the memory is used; nothing
    happens where the system cannot. `owner` is kept until then."""
    timer = threading.Timer(delay_s, _move, (list(places), owner))
    timer.daemon = True
    timer.start()
    return timer


def _move(places: list[tuple[int, int]], owner: object) -> None:
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, num_bytes in places:
        first = -(-address // PAGE_BYTES) * PAGE_BYTES
        for page in range(first, address + num_bytes - PAGE_BYTES + 1, PAGE_BYTES):  # one by one: who takes memory waits meanwhile
            madvise(page, PAGE_BYTES, COLLAPSE)
