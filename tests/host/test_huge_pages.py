import gc
import weakref

import numpy as np

from octavo.host import huge_pages
from octavo.host.huge_pages import PAGE_BYTES, move_later


class Owner:
    pass


class Library:
    """Notes what it is called with, in place of the C library."""

    def __init__(self):
        self.calls = []
        self.madvise = lambda *call: self.calls.append(call)


def test_memory_keeps_what_it_holds_and_its_owner_is_let_go():
    memory = np.arange(3 * PAGE_BYTES // 8)
    want, owner = memory.copy(), Owner()
    there = weakref.ref(owner)
    timer = move_later([(memory.ctypes.data, memory.nbytes)], owner, delay_s=0.0)
    del owner
    timer.join()
    assert np.array_equal(memory, want)
    del timer
    gc.collect()
    assert there() is None


def test_only_whole_pages_within_a_piece_are_moved(monkeypatch):
    library = Library()
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda name: library)
    begin = 10 * PAGE_BYTES
    move_later([(begin - 1, 2 * PAGE_BYTES), (begin, PAGE_BYTES - 1), (begin, PAGE_BYTES)], None, delay_s=0.0).join()
    assert [page for page, _, _ in library.calls] == [begin, begin]


def test_nothing_happens_where_the_system_has_no_such_call(monkeypatch):
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda name: object())
    timer = move_later([(PAGE_BYTES, PAGE_BYTES)], None, delay_s=0.0)
    timer.join()
    assert not timer.is_alive()
