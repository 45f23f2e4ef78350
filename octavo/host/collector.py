"""Python's collector of garbage, kept from a start."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """A start makes half a million objects, nearly all of which stay: the collector would look through them ever again, which is a sixth of
    importing torch. It never looks at them later either, since that would be pauses in the middle of steps."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
