"""Who goes first. An order is a value given at arrival, so queues stay sorted with no look at the clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from octavo.core.fairness import Fair
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


class Policy(Protocol):
    """Gives each sequence its order, and is told what becomes of it."""

    @property
    def order(self) -> Order: ...

    def admitted(self, sequence: Sequence) -> None:
        """It runs for the first time."""
        ...

    def ended(self, sequence: Sequence, waiting: list[Sequence]) -> bool:
        """It has ended, if admitted or not. May change the order of those that wait; whether it did."""
        ...


@dataclass(frozen=True)
class ByRequest:
    """An order that hangs on the request alone."""

    order: Order

    def admitted(self, sequence: Sequence) -> None:
        pass

    def ended(self, sequence: Sequence, waiting: list[Sequence]) -> bool:
        return False


POLICIES: dict[str, Callable[[], Policy]] = {"fcfs": lambda: ByRequest(fcfs), "priority": lambda: ByRequest(priority), "fair": Fair}

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
        for sequence in sequences:
            self.push(sequence)

    def sort(self) -> None:
        """Linear when already in order."""
        self.items.sort(key=_order)

    def remove(self, sequence: Sequence) -> None:
        place = self.place(sequence)
        assert self.items[place] is sequence
        del self.items[place]

    def place(self, sequence: Sequence) -> int:
        return bisect_left(self.items, sequence.order, key=_order)
