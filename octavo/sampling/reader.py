"""What is read off the hidden states of a step besides the sampled tokens: scores of prompts, vectors of texts.

A reader is one object for all rows. It follows every plan, so it knows which rows asked for something and how far they are; the runner
does not know what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from octavo.core.plan import Plan

Logits = Callable[[torch.Tensor], torch.Tensor]  # hidden [M, hidden] -> [M, width]


@dataclass(frozen=True)
class Reading:
    """What one reader found in a step, still on the device. `entry` makes of a slice's tensors, once they are on the host, what the
    `StepOutput`'s field `name` holds for that slice."""

    name: str
    found: Mapping[int, Sequence[torch.Tensor]]  # by slice index; as many tensors for each
    entry: Callable[[Sequence[torch.Tensor]], Any]


class Reader(Protocol):
    """Reads what some rows asked for."""

    def follow(self, plan: Plan) -> None:
        """Note which rows begin and end. `read` does it too; a replayed step, which has no prompt tokens, needs only this."""
        ...

    def read(self, plan: Plan, hidden: torch.Tensor, logits: Logits) -> Reading:
        """Read `hidden` [T, hidden] of the plan's flat batch. Called once for every plan that is not replayed."""
        ...
