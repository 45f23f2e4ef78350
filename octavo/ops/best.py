"""The greedy choice: the largest logit of each row."""

from __future__ import annotations

import numpy as np
import torch


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N] int64 and logits [N] of the largest in each row of `logits` [N, vocab]; the lowest id of equals; NaN counts as largest."""
    if logits.device.type == "cpu":  # numpy's argmax is ten times quicker there
        rows = logits.float().numpy()
        tokens = rows.argmax(-1)
        return torch.from_numpy(tokens), torch.from_numpy(rows[np.arange(len(rows)), tokens])
    peaks, tokens = logits.max(-1)
    return tokens, peaks.float()
