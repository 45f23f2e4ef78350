"""Python's collector of garbage, kept from a start."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


def collect_seldom() -> None:
    """For a process that makes a step's objects and drops them again: by default the collector would look at them in every step of many
    sequences, and a full collection in the middle of a step is a pause for everybody."""
    gc.set_threshold(100_000, 20, 100)


@contextmanager
def seldom_collected() -> Generator[None]:
    """The same while steps are made in a process that is somebody else's."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
