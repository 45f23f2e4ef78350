"""`prompt_logprobs`: the prompt's own tokens scored as the model reads them, chunk by chunk.

The logits of each prompt position are needed for it, not only of the last one. They are made a few positions at a time, so that a long
prompt with a wide vocabulary does not take gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.core.plan import Admission, Plan
from octavo.sampling.logprobs import Scores, entries, score
from octavo.sampling.reader import Logits, Reading

_LOGITS_BYTES = 64 << 20  # of the logits made at once


@dataclass
class _Reading:
    """A prompt that is being read."""

    admission: Admission
    position: int  # of the next token that is fed


class PromptScores:
    """Follows the rows that asked. The host knows their positions exactly: prompt tokens are never drafts."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._readings: dict[int, _Reading] = {}

    def follow(self, plan: Plan) -> None:
        for row in plan.retired:
            self._readings.pop(row, None)
        for admission in plan.admitted:
            if admission.params.prompt_logprobs is not None and admission.index == 0:
                self._readings[admission.row] = _Reading(admission, admission.computed)

    def read(self, plan: Plan, hidden: torch.Tensor, logits: Logits) -> Reading:
        scores = self.score(plan, lambda at: logits(hidden[at]), hidden.device)
        return Reading("prompt_logprobs", {index: (one.token_ids, one.logprobs, one.ranks) for index, one in scores.items()}, entries)

    def score(self, plan: Plan, logits_at: Callable[[torch.Tensor], torch.Tensor], device: torch.device | str) -> dict[int, Scores]:
        """Scores by slice index: one for each prompt token whose predecessor is in the slice. Call once for every plan.

        `logits_at` gives the logits [M, width] of M positions [M] int64 in the flat batch. A sequence that resumes after preemption is
        scored again from where it restarts. Only continuation 0 of a request is scored.
        """
        self.follow(plan)
        scores: dict[int, Scores] = {}
        start = 0
        for index, piece in enumerate(plan.slices if self._readings else ()):
            reading = self._readings.get(piece.row)
            if reading is not None:
                targets = self._targets(reading, piece.count)
                if targets:
                    k = reading.admission.params.prompt_logprobs
                    assert k is not None
                    scores[index] = self._score(start, targets, k, logits_at, device)
                if reading.position >= reading.admission.num_prompt_tokens:
                    del self._readings[piece.row]
            start += piece.count
        return scores

    def _targets(self, reading: _Reading, count: int) -> tuple[int, ...]:
        """The prompt tokens that follow the next `count` positions; moves on by them."""
        first = reading.position + 1
        reading.position += count
        return reading.admission.tokens[first : min(first + count, reading.admission.num_prompt_tokens)]

    def _score(
        self, start: int, targets: tuple[int, ...], k: int, logits_at: Callable[[torch.Tensor], torch.Tensor], device: torch.device | str
    ) -> Scores:
        at_once = max(1, _LOGITS_BYTES // (4 * self._vocab_size))
        parts: list[Scores] = []
        for first in range(0, len(targets), at_once):
            part = torch.tensor(targets[first : first + at_once], dtype=torch.int64, device=device)
            positions = torch.arange(start + first, start + first + len(part), device=device)
            logits = logits_at(positions)[:, : self._vocab_size].float()
            parts.append(score(logits, part, k))
        return Scores(*(torch.cat(tensors) for tensors in zip(*((p.token_ids, p.logprobs, p.ranks) for p in parts))))
