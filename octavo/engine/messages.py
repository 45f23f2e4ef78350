"""What a front says to an engine. Plain data; the same messages serve the inline and the separate-process engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.types import FinishReason, Request, SequenceOutput


@dataclass(frozen=True, slots=True)
class Add:
    """A new request."""

    request: Request
    number: int = 0  # the front's own for its first continuation, the others' follow: by them tokens are told to a front elsewhere


@dataclass(frozen=True, slots=True)
class Finish:
    """The front ended one continuation after its first `num_tokens` tokens."""

    request_id: str
    index: int
    reason: FinishReason
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody wants this request any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that the engine answers between two steps: "stats", "load", "step_log", "advice", "reset_prefix_cache"; or an order, whose
    answer is a list of complaints: those of `octavo.engine.sleep` and of workers."""

    id: str  # unique over all fronts
    what: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine: at once, or when all work is done."""

    drain: bool


Command = Add | Finish | Abort | Ask | Stop


class Outbox(Protocol):
    """Where news goes. Calls must not block for long: the device may be waiting."""

    def send(self, outputs: Sequence[SequenceOutput]) -> None: ...

    def answer(self, ask: Ask, value: object) -> None: ...
