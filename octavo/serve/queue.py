"""Requests that have no token yet: how many there may be, how long a new one would wait, and who is told to come again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from octavo.config.server import ServerConfig
from octavo.ledger import Counts, Ledger
from octavo.serve.errors import ApiError
from octavo.serve.first_token import FirstTokenEstimate, PredictedSteps

LONGEST_RETRY_S = 60.0
IN_TIME = 0.995  # share of the requests that are taken whose first token comes within the limit
MARGIN_STEP = 0.05
LARGEST_MARGIN = 4.0


class Margin:
    """By what factor waits may exceed what was expected, so that hardly one exceeds even that.

    A quantile followed by small steps (Robbins and Monro 1951, "A Stochastic Approximation Method"). The estimate is right on average;
    a limit that is promised must hold for nearly all.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def saw(self, expected_s: float, took_s: float) -> None:
        exceeds = took_s > expected_s * self.factor
        self.factor += MARGIN_STEP * (IN_TIME if exceeds else IN_TIME - 1)
        self.factor = min(max(self.factor, 1.0), LARGEST_MARGIN)


@dataclass(frozen=True, slots=True)
class Place:
    """A request's place in the queue."""

    num_tokens: int
    since_s: float
    expected_s: float | None  # of waiting, at that time


class Queue:
    """Counts what waits, and refuses with 429 and Retry-After what it has no room for."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Callable[[], float],
        estimate: FirstTokenEstimate | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._counts = Counts(("requests", "tokens", "tokens_read"), ledger)
        self._num_read = 0  # tokens of prompts that the estimate knows of
        self.estimate = estimate or PredictedSteps()
        self._config = config
        self._clock = clock
        self._margin = Margin()

    @property
    def num_requests(self) -> int:
        """That wait, in all API processes."""
        return self._counts["requests"]

    @property
    def num_tokens(self) -> int:
        return self._counts["tokens"]

    def joined(self, num_tokens: int) -> Place:
        """A request begins to wait."""
        place = Place(num_tokens, self._clock(), self.wait_s(num_tokens))
        self._count(place.since_s, 1, num_tokens)
        return place

    def left(self, place: Place, *, read: bool) -> None:
        """It has its first token, or has ended without one."""
        now_s = self._clock()
        self._count(now_s, -1, -place.num_tokens, place.num_tokens if read else 0)
        limit_ms, expected_s = self._config.admission_ttft_ms, place.expected_s
        if read and limit_ms is not None and expected_s is not None and 2000 * expected_s * self._margin.factor > limit_ms:
            self._margin.saw(expected_s, now_s - place.since_s)  # short waits are of no interest, and hang on one step

    def _count(self, now_s: float, num_requests: int, num_tokens: int, num_read: int = 0) -> None:
        """What other processes have read since the last time counts now too."""
        for name, number in (("requests", num_requests), ("tokens", num_tokens), ("tokens_read", num_read)):
            self._counts.add(name, number)
        all_read = self._counts["tokens_read"]
        self.estimate.changed(now_s, self.num_requests, all_read - self._num_read)
        self._num_read = all_read

    def wait_s(self, num_tokens: int = 0) -> float | None:
        """Until the first token of a prompt of that many tokens; None while nothing is known."""
        return self.estimate.seconds(self.num_tokens, num_tokens)

    def check(self, num_requests: int = 0, num_tokens: int = 0) -> None:
        """Raise `ApiError` if so many more have no room. Whoever finds the queue empty is taken, however large."""
        if not self.num_requests:
            return
        for limit, waiting, new, what in (
            (self._config.max_num_queued_reqs, self.num_requests, num_requests, "requests"),
            (self._config.max_num_queued_tokens, self.num_tokens, num_tokens, "prompt tokens"),
        ):
            if limit is not None and waiting + new > limit:
                message = f"{waiting} {what} are waiting already, the limit is {limit}; try again later."
                raise ApiError(429, message, code="queue_full", retry_after_s=retry_s(self.wait_s()))
        limit_ms, expected_s = self._config.admission_ttft_ms, self.wait_s(num_tokens)
        if limit_ms is None or expected_s is None:
            return
        wait_s = expected_s * self._margin.factor
        if 1000 * wait_s > limit_ms:
            message = f"The first token would take about {wait_s:.1f} s, the limit is {limit_ms / 1000:g} s; try again later."
            raise ApiError(429, message, code="wait_too_long", retry_after_s=retry_s(wait_s - limit_ms / 1000))


def retry_s(seconds: float | None) -> int:
    """Whole seconds for Retry-After."""
    return 1 if seconds is None else math.ceil(min(max(seconds, 1.0), LONGEST_RETRY_S))
