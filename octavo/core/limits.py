"""Limits: what may hold a sequence back besides tokens, rows and blocks. Each is one object; the scheduler knows only the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.core.sequence import Sequence
from octavo.types import SamplingParams


class Limit(Protocol):
    """Asked when a sequence would take a row and for every later chunk of known tokens; one that decodes is never held back.

    `enter` and `leave` are called in pairs, when the sequence takes its row and when it gives it up.
    """

    def clip(self, sequence: Sequence, n: int) -> int:
        """How many of the next `n` tokens may be planned now; 0 holds the sequence back. Changes nothing."""
        ...

    def enter(self, sequence: Sequence) -> None: ...

    def leave(self, sequence: Sequence) -> None: ...


class Preparation:
    """Holds requests back while something outside of the core is prepared for them, such as their grammar."""

    def __init__(self) -> None:
        self.pending: set[str] = set()  # ids of requests

    def clip(self, sequence: Sequence, n: int) -> int:
        return 0 if sequence.request_id in self.pending else n

    def enter(self, sequence: Sequence) -> None:
        pass

    def leave(self, sequence: Sequence) -> None:
        pass


def needs_vocabulary_slot(params: SamplingParams) -> bool:
    """Whether its sampling needs columns as wide as the vocabulary: counts, masks or biases."""
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words
        or params.bad_token_ids
        or params.min_tokens
    )


class SlotPool:
    """At most `num_slots` rows at once for which `needs` is true: they hold something dear that not every row has."""

    def __init__(self, num_slots: int, needs: Callable[[SamplingParams], bool] = needs_vocabulary_slot) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots = {num_slots}: at least 1, or what needs a slot could never run")
        self.num_slots = num_slots
        self.num_used = 0
        self._needs = needs

    def clip(self, sequence: Sequence, n: int) -> int:
        if sequence.row < 0 and self.num_used == self.num_slots and self._needs(sequence.request.params):
            return 0
        return n

    def enter(self, sequence: Sequence) -> None:
        self.num_used += self._needs(sequence.request.params)

    def leave(self, sequence: Sequence) -> None:
        self.num_used -= self._needs(sequence.request.params)
