"""`allowed_token_ids` and `logit_bias`: what is added to the logits all through a sequence, -inf for ids that are not allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from octavo.core.plan import Admission
from octavo.sampling.stage import Column, Place, View
from octavo.types import SamplingParams


class Bias:
    """One additive vector a row."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = (Column("bias", (vocab_size,), place=Place.SLOT),)

    def wants(self, params: SamplingParams) -> bool:
        return params.allowed_token_ids is not None or bool(params.logit_bias)

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        """Ids past the vocabulary are ignored; if no allowed id is left, no token can be sampled and the sequence fails."""
        params = admission.params
        bias = np.zeros(self._vocab_size, np.float32)
        if params.allowed_token_ids is not None:
            bias[:] = -np.inf
            bias[[i for i in params.allowed_token_ids if i < self._vocab_size]] = 0
        for token, value in (params.logit_bias or {}).items():
            if token < self._vocab_size:
                bias[token] += value
        return {"bias": bias}

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        return logits.add_(view.pool("bias"))

    def update(self, view: View, tokens: torch.Tensor) -> None:
        """Nothing changes."""
