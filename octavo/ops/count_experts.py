"""How many tokens went to each expert: running totals on the device."""

from __future__ import annotations

import torch


def count_experts(totals: torch.Tensor, chosen: torch.Tensor) -> None:
    """Add to `totals` [num_experts] int64 the tokens that chose each expert; `chosen` [T, per_token] holds numbers of experts."""
    experts = chosen.reshape(-1).long()
    totals.scatter_add_(0, experts, totals.new_ones(1).expand_as(experts))
