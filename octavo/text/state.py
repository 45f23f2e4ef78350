"""A request under way, as those who follow it see it: fed with the engine's news, it says what its caller is to be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from octavo.types import FinishReason, Request, RequestMetrics, SequenceOutput

Output = TypeVar("Output", covariant=True)


class Growing(Protocol):
    """A continuation of which a stream tells the text and no more."""

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
    num_output_tokens: int  # that the caller was given

    @property
    def finished(self) -> bool: ...

    @property
    def finish_reasons(self) -> set[FinishReason | None]:
        """Of its continuations; None: not ended."""
        ...

    def growing(self, index: int) -> Growing | None:
        """A continuation, if its text can be told without `feed`: whoever does so counts its tokens in `num_output_tokens`."""
        ...

    def feed(self, news: Iterable[SequenceOutput]) -> tuple[Output | None, list[tuple[int, int]]]:
        """What the caller is to be told now, if anything, and the continuations that the front has ended, as (index, number of tokens)."""
        ...

    def abort(self) -> Output | None:
        """The engine will say no more of it."""
        ...
