"""Rows of the embedding table, of which a rank may hold only a stretch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding(tokens: torch.Tensor, weight: torch.Tensor, first: int) -> torch.Tensor:
    """weight [n, hidden] holds the rows `first` to `first + n`; tokens [T] int64 -> [T, hidden], zeros for rows that are elsewhere."""
    local = tokens - first
    here = (local >= 0) & (local < weight.shape[0])
    return F.embedding(local.where(here, 0), weight) * here.unsqueeze(-1)
