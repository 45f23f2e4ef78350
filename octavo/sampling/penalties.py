"""Repetition, frequency and presence penalties.

Repetition (Keskar et al., "CTRL", 2019) divides positive and multiplies negative logits of every token of prompt and output. Frequency and
presence, as OpenAI defines them, are subtracted for tokens of the output alone: per occurrence, and once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from octavo.core.plan import Admission
from octavo.sampling.stage import Column, Place, View
from octavo.types import SamplingParams

_ONCE = 2  # what one occurrence in the output adds to `seen`; the lowest bit marks the prompt's tokens


class Penalties:
    """Keeps what was seen in one vector a slot: twice the number of occurrences in the output, plus one for tokens of the prompt."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = (
            Column("repetition", default=1.0),
            Column("frequency"),
            Column("presence"),
            Column("seen", (vocab_size,), torch.int32, place=Place.SLOT),
        )

    def wants(self, params: SamplingParams) -> bool:
        return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        """Ids past the logits' width (placeholders of media) are not counted: they are never sampled."""
        params = admission.params
        tokens = np.array(admission.tokens)
        prompt, output = tokens[: admission.num_prompt_tokens], tokens[admission.num_prompt_tokens :]
        seen = _ONCE * np.bincount(output[output < self._vocab_size], minlength=self._vocab_size)
        seen[prompt[prompt < self._vocab_size]] |= 1
        return {
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "seen": seen,
        }

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        if logits.device.type == "cpu":
            return _apply_on_host(logits, view)
        return apply_dense(logits, view)

    def update(self, view: View, tokens: torch.Tensor) -> None:
        slots = view.slots
        once = (slots > 0).to(torch.int32) * _ONCE  # slot 0 is everybody's default and stays clean
        view.source.pools["seen"].index_put_((slots, tokens), once, accumulate=True)


def apply_dense(logits: torch.Tensor, view: View) -> torch.Tensor:
    """Over the whole vocabulary, with fixed shapes. [N, vocab]."""
    seen = view.pool("seen")  # [N, vocab]
    repetition = torch.where(seen > 0, view.column("repetition")[:, None], 1.0)
    logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits -= view.column("frequency")[:, None] * (seen // _ONCE)
    logits -= view.column("presence")[:, None] * (seen >= _ONCE)
    return logits


def _apply_on_host(logits: torch.Tensor, view: View) -> torch.Tensor:
    """Only at the tokens that were seen, which are few. In place."""
    pool = view.source.pools["seen"].numpy()
    settings = zip(*(view.column(name).tolist() for name in ("repetition", "frequency", "presence")), strict=True)
    for row, slot, (repetition, frequency, presence) in zip(logits.numpy(), view.slots.tolist(), settings, strict=True):
        at = np.flatnonzero(pool[slot])
        values, times = row[at], pool[slot][at] // _ONCE
        values = np.where(values > 0, values / np.float32(repetition), values * np.float32(repetition))
        row[at] = values - np.float32(frequency) * times.astype(np.float32) - np.float32(presence) * (times > 0)
    return logits
