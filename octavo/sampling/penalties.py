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


class Penalties:
    """Counts of the output's tokens and marks of the prompt's, a slot each."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = (
            Column("repetition", default=1.0),
            Column("frequency"),
            Column("presence"),
            Column("output_counts", (vocab_size,), torch.int32, place=Place.SLOT),
            Column("in_prompt", (vocab_size,), torch.bool, place=Place.SLOT),
        )

    def wants(self, params: SamplingParams) -> bool:
        return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        """Ids past the logits' width (placeholders of media) are not counted: they are never sampled."""
        params = admission.params
        tokens = np.array(admission.tokens)
        prompt, output = tokens[: admission.num_prompt_tokens], tokens[admission.num_prompt_tokens :]
        in_prompt = np.zeros(self._vocab_size, bool)
        in_prompt[prompt[prompt < self._vocab_size]] = True
        return {
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "output_counts": np.bincount(output[output < self._vocab_size], minlength=self._vocab_size),
            "in_prompt": in_prompt,
        }

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        counts = view.pool("output_counts")  # [N, vocab]
        in_output = counts > 0
        repetition = torch.where(view.pool("in_prompt") | in_output, view.column("repetition")[:, None], 1.0)
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits -= view.column("frequency")[:, None] * counts
        logits -= view.column("presence")[:, None] * in_output
        return logits

    def update(self, view: View, tokens: torch.Tensor) -> None:
        slots = view.slots
        ones = (slots > 0).to(torch.int32)  # slot 0 is everybody's default and stays clean
        view.source.pools["output_counts"].index_put_((slots, tokens), ones, accumulate=True)
