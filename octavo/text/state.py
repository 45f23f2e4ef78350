"""A request under way, as those who follow it see it: fed with the engine's news, it says what its caller is to be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from octavo.types import FinishReason, Request, RequestMetrics, SequenceOutput

Output = TypeVar("Output", covariant=True)


class Growing(Protocol):
    """A continuation."""

    index: int
    num_tokens: int
    told_s: float | None  # when its last tokens came, if whoever follows it keeps that
    by_text: bool  # whether a stream tells its text and no more, so that `short_text` may be asked

    def short_text(self, token_id: int) -> str | None:
        """The text, maybe none, that news of one token and no more makes certain; None, and nothing is done, where `State.feed` must look
        at it."""
        ...


class State(Protocol[Output]):
    """`RequestState` for texts, `PoolingState` for vectors."""

    request: Request
    metrics: RequestMetrics
    num_cached_tokens: int | None
    cache_miss: str | None

    @property
    def finished(self) -> bool: ...

    @property
    def finish_reasons(self) -> set[FinishReason | None]:
        """Of its continuations; None: not ended."""
        ...

    @property
    def num_output_tokens(self) -> int:
        """Of all continuations, without those past a stop string."""
        ...

    def growing(self, index: int) -> Growing | None:
        """A continuation, where there are any."""
        ...

    def feed(self, news: Iterable[SequenceOutput]) -> tuple[Output | None, list[tuple[int, int]]]:
        """What the caller is to be told now, if anything, and the continuations that the front has ended, as (index, number of tokens)."""
        ...

    def abort(self) -> Output | None:
        """The engine will say no more of it."""
        ...
