"""Runs a loop in a process of its own until it is told to stop, whatever brings its commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.engine.messages import Command
from octavo.engine.orders import Ahead

CHECK_EVERY_S = 1.0  # how soon the death of an idle worker is noticed


class Loop(Protocol):
    """What is needed of `EngineLoop`."""

    stopping: bool
    wakes: Sequence[int]  # descriptors that can be read when the loop becomes busy by itself

    @property
    def busy(self) -> bool: ...

    def handle(self, commands: Sequence[Command]) -> None: ...

    def step(self) -> None: ...

    @property
    def ahead(self) -> Ahead: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


def drive(loop: Loop, receive: Callable[[bool], list[Command]]) -> None:
    """`receive(wait)` gives all commands that have come; with `wait` it blocks up to `CHECK_EVERY_S` until there is one
    or the loop wakes."""
    while loop.busy or not loop.stopping:
        loop.handle(receive(not loop.busy and not loop.ahead.left))
        if not loop.busy:
            loop.check()
            loop.ahead.give_next()
        if loop.busy:
            loop.step()
    loop.close()
