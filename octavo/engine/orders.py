"""Orders to workers: what they do between two steps, beside plans (`octavo.engine.inline.Worker.orders`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from octavo.engine.executor import Executor, OrderFailed


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
