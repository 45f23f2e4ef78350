"""`min_tokens`: no end id and no stop id may be sampled before the output has that many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from octavo.core.plan import Admission
from octavo.sampling.stage import Column, Place, View
from octavo.types import SamplingParams


class MinTokens:
    """Masks all ids that would end the sequence, also end ids that `ignore_eos` lets through as text."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = (
            Column("open_from", dtype=torch.int64),  # index in the sequence from which on it may end
            Column("ends", (vocab_size,), torch.bool, place=Place.SLOT),
        )

    def wants(self, params: SamplingParams) -> bool:
        return params.min_tokens > 0 and bool(params.eos_token_ids or params.stop_token_ids)

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        params = admission.params
        ends = np.zeros(self._vocab_size, bool)
        ends[[i for i in {*params.eos_token_ids, *params.stop_token_ids} if i < self._vocab_size]] = True
        return {"open_from": admission.num_prompt_tokens + params.min_tokens, "ends": ends}

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        closed = view.positions < view.column("open_from")  # [N]
        return logits.masked_fill_(closed[:, None] & view.pool("ends"), -torch.inf)

    def update(self, view: View, tokens: torch.Tensor) -> None:
        """The position says how long the output is."""
