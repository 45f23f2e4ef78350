"""Who goes first. An order is a value fixed at arrival, so queues stay sorted with no look at the clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from octavo.core.sequence import Sequence
from octavo.types import Request

AGING_S = 30.0  # a request that has waited this much longer equals one of the next better priority

Order = Callable[[Request, int, int], tuple[float, int, int]]


def fcfs(request: Request, number: int, index: int) -> tuple[float, int, int]:
    """By arrival."""
    return (0.0, number, index)


def priority(request: Request, number: int, index: int) -> tuple[float, int, int]:
    """By priority, lower first, with linear aging, so that nothing starves.

    Comparing `priority - waited_s / AGING_S` of two requests at any one time is comparing this, since the time itself cancels out.
    """
    return (request.priority * AGING_S + request.arrival_s, number, index)


POLICIES: dict[str, Order] = {"fcfs": fcfs, "priority": priority}

_order = attrgetter("order")


class Queue:
    """Sequences sorted by their order, smallest first."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.items)

    def push(self, sequence: Sequence) -> None:
        insort(self.items, sequence, key=_order)

    def extend(self, sequences: Iterable[Sequence]) -> None:
        self.items.extend(sequences)
        self.items.sort(key=_order)  # linear when already in order

    def remove(self, sequence: Sequence) -> None:
        place = self.place(sequence)
        assert self.items[place] is sequence
        del self.items[place]

    def place(self, sequence: Sequence) -> int:
        return bisect_left(self.items, sequence.order, key=_order)
