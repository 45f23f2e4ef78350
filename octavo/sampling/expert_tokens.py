"""Tokens per expert, as routers count them on the device, brought to the host with the outcome of one step in many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from octavo.core.plan import Plan
from octavo.sampling.reader import Logits, Reading

EVERY = 16  # steps that are not replayed; totals hold the replayed ones too


class ExpertTokens:
    """Reads the totals of all routers; the running totals themselves, so that nothing is lost between two readings."""

    def __init__(self, totals: Mapping[int, torch.Tensor]) -> None:
        """`totals` [num_experts] int64 by layer."""
        self._totals = totals
        self._num_steps = 0

    def follow(self, plan: Plan) -> None:
        pass

    def read(self, plan: Plan, hidden: torch.Tensor, logits: Logits) -> Reading:
        due = self._num_steps % EVERY == 0
        self._num_steps += 1
        found = {layer: (total.clone(),) for layer, total in self._totals.items()} if due else {}
        return Reading("expert_tokens", found, _as_list)


def _as_list(tensors: Sequence[torch.Tensor]) -> list[int]:
    return tensors[0].tolist()
