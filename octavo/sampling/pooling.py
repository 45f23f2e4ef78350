"""`pooling`: one vector for a whole prompt, from the hidden states after the last layer's norm. Neither scaled nor cut here.

"last" is the state of the last token, which has read all others; "mean" the mean over all tokens, summed chunk by chunk, for which every
token must be computed: such a request reads no cached prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.core.plan import Admission, Plan, Slice
from octavo.sampling.reader import Logits, Reading


@dataclass
class _Open:
    """A prompt that is being read."""

    admission: Admission
    total: torch.Tensor | None = None  # [hidden] float32: the sum so far


class Pooling:
    """Follows the rows that asked. A sequence that is preempted begins anew with its next admission."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def follow(self, plan: Plan) -> None:
        for row in plan.retired:
            self._open.pop(row, None)
        for admission in plan.admitted:
            if admission.params.pooling is not None and admission.index == 0:
                self._open[admission.row] = _Open(admission)

    def read(self, plan: Plan, hidden: torch.Tensor, logits: Logits) -> Reading:
        self.follow(plan)
        found: dict[int, Sequence[torch.Tensor]] = {}
        start = 0
        for index, piece in enumerate(plan.slices if self._open else ()):
            reading = self._open.get(piece.row)
            if reading is not None:
                vector = self._take(reading, piece, hidden[start : start + piece.count])
                if vector is not None:
                    found[index] = (vector,)
                    del self._open[piece.row]
            start += piece.count
        return Reading("pooled", found, _as_bytes)

    def _take(self, reading: _Open, piece: Slice, states: torch.Tensor) -> torch.Tensor | None:
        """The vector [hidden] once the prompt's last token is among `states` [count, hidden]."""
        if reading.admission.params.pooling == "last":
            return states[-1].float() if piece.sample else None
        part = states.sum(0, dtype=torch.float32)
        reading.total = part if reading.total is None else reading.total + part
        return reading.total / reading.admission.num_prompt_tokens if piece.sample else None


def _as_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    return tensors[0].to(torch.float32).numpy().astype("<f4").tobytes()
