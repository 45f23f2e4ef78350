"""Orders to workers: what they do between two steps, beside plans (`octavo.engine.inline.Worker.orders`)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from octavo.engine.executor import Executor, OrderFailed

log = logging.getLogger(__name__)
Order = tuple[Any, ...]  # its name and arguments


class Loop(Protocol):
    """What is needed of `EngineLoop`."""

    executor: Executor

    @property
    def flight(self) -> Collection[Any]: ...

    def commit(self) -> None:
        """Wait for the oldest step in flight."""
        ...


def order_workers(loop: Loop, name: str, *args: Any) -> list[str]:
    """Have all workers do it. What keeps them from it; nothing where they have."""
    while loop.flight:
        loop.commit()
    try:
        loop.executor.order(name, *args)
    except OrderFailed as failure:
        return [str(failure)]
    return []


class Ahead:
    """Orders that save later steps time, given one by one while nothing else is to do."""

    def __init__(self, give: Callable[..., list[str]], orders: Iterable[Order] = ()) -> None:
        """`give` has the workers do one of them, and says what kept them from it."""
        self._give, self._left = give, deque(orders)

    @property
    def left(self) -> bool:
        return bool(self._left)

    def give_next(self) -> None:
        """What fails is not tried on: the steps do without."""
        if self._left and (failures := self._give(*self._left.popleft())):
            log.warning("later steps are not made ready: %s", failures[0])
            self._left.clear()
