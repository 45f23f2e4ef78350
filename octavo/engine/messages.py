"""What a front says to an engine. Plain data; the same messages serve the inline and the separate-process engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.types import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Add:
    """A new request."""

    request: Request


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
    answer is a list of complaints: those of `octavo.engine.sleep`."""

    id: str  # unique over all fronts
    what: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine: at once, or when all work is done."""

    drain: bool


Command = Add | Finish | Abort | Ask | Stop
