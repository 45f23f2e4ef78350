"""Counts of values by size: cheap to add to on the path of every token, and told to Prometheus in the buckets that it knows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from octavo.ledger import Ledger


class Histogram:
    """Counts of values by upper bound. `fine` divides each bucket into so many of equal ratio, which only `counts` and `bounds` tell."""

    __slots__ = ("_counts", "_sum", "bounds", "fine")

    def __init__(self, bounds: Sequence[float], fine: int = 1, ledger: Ledger | None = None) -> None:
        ledger = ledger or Ledger()
        self.bounds = _divided(bounds, fine)
        self.fine = fine
        self._counts = ledger.whole(len(self.bounds) + 1)
        self._sum = ledger.real(1)

    def observe(self, value: float) -> None:
        self._counts.own[bisect_left(self.bounds, value)] += 1
        self._sum.own[0] += value

    @property
    def counts(self) -> list[int]:
        """Of all processes that count together."""
        return self._counts.totals()

    @property
    def total(self) -> float:
        return self._sum.total(0)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Counts of the values up to each undivided bound, as Prometheus wants them."""
        told = cumulative(zip((*map(bound_text, self.bounds), "+Inf"), self.counts))
        return [*told[self.fine - 1 : -1 : self.fine], told[-1]]


def _divided(bounds: Sequence[float], fine: int) -> tuple[float, ...]:
    """Each bound, and `fine - 1` before it; before the first they begin at the first's distance below the second."""
    found: list[float] = []
    below = bounds[0] * bounds[0] / bounds[1]
    for bound in bounds:
        found += [below * (bound / below) ** (part / fine) for part in range(1, fine)]
        found.append(bound)
        below = bound
    return tuple(found)


def bound_text(value: float) -> str:
    """As Prometheus writes an upper bound."""
    return str(float(value))


def cumulative(counts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Each count with those before it."""
    so_far, buckets = 0.0, []
    for bound, count in counts:
        so_far += count
        buckets.append((bound, so_far))
    return buckets


def one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to the limit."""
    steps = (digit * 10**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return [step for step in steps if step <= limit]
