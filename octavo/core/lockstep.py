"""Data-parallel ranks with shared experts step together: what they tell each other before a step, and what follows from it.

While step k runs, every rank says what step k + 1 would be for it. All draw the same conclusion from the same words, so no rank ever waits
in a collective that another does not enter. A rank without work joins with an empty step, until all say that they have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Intent:
    """What one rank would do next: upper bounds that its host knows."""

    num_tokens: int  # padded; 0 when it has no work
    graph: bool = True  # whether it could run as a captured graph; one without work could

    def __post_init__(self) -> None:
        assert self.num_tokens >= 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How every rank runs the step: padded to one size, in one way."""

    num_tokens: int
    graph: bool


def agree(intents: Sequence[Intent]) -> Agreement | None:
    """The step of all ranks: the largest size, and a graph only if all can; None when nobody has work, which ends the wave."""
    num_tokens = max(intent.num_tokens for intent in intents)
    if num_tokens == 0:
        return None
    return Agreement(num_tokens, all(intent.graph or intent.num_tokens == 0 for intent in intents))
