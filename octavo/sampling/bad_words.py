"""`bad_words`: a word, given as token ids, is never completed: its last id is banned where the output ends with the ids before it.

Words and outputs are of any length, so each row keeps its own small tensors; no memory is set aside for rows without banned words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from octavo.core.plan import Admission
from octavo.sampling.stage import Column, Place, View
from octavo.types import SamplingParams

_ANY, _NONE = -1, -2  # in a word's beginning: matches everything; in the output: no token yet


class BadWords:
    """W words a row, of at most 1 + L ids."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.columns = tuple(
            Column(name, place=Place.RAGGED)
            for name in (
                "bad_beginnings",  # [W, L] int64: the ids before the last, filled with _ANY on the left
                "bad_endings",  # [W] int64
                "recent",  # [L] int64: the newest output
            )
        )

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.bad_token_ids)

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        """Words with an id past the vocabulary can never be completed and are left out. The prompt is not looked at."""
        words = [word for word in admission.params.bad_token_ids if word and max(word) < self._vocab_size]
        length = max((len(word) - 1 for word in words), default=0)
        beginnings = np.full((len(words), length), _ANY, np.int64)
        for line, word in zip(beginnings, words):
            line[length - len(word) + 1 :] = word[:-1]
        recent = np.full(length, _NONE, np.int64)
        output = admission.tokens[admission.num_prompt_tokens :][-length:] if length else ()
        recent[length - len(output) :] = output
        return {"bad_beginnings": beginnings, "bad_endings": np.array([word[-1] for word in words], np.int64), "recent": recent}

    def apply(self, logits: torch.Tensor, view: View) -> torch.Tensor:
        columns = (view.ragged(column.name) for column in self.columns)
        for line, beginnings, endings, recent in zip(logits, *columns):
            matches = ((beginnings == recent) | (beginnings == _ANY)).all(-1)  # [W]
            line.index_add_(0, endings, torch.where(matches, -torch.inf, 0.0))
        return logits

    def update(self, view: View, tokens: torch.Tensor) -> None:
        for recent, token in zip(view.ragged("recent"), tokens.split(1)):
            if recent.numel():
                recent.copy_(torch.cat((recent[1:], token)))
