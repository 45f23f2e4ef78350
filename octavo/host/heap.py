"""The C library's heap, one for all threads."""

from __future__ import annotations

import ctypes

ARENA_MAX = -8  # M_ARENA_MAX of malloc.h


def share_heap() -> None:
    """By default glibc gives each thread that allocates a heap of its own, and what one has freed no other fills: a process whose threads
    take turns with the same work grows for hours. To be called before there are threads; other C libraries are left as they are."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(ARENA_MAX, 1)
