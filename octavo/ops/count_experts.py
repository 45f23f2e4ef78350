"""How many tokens went to each expert: running totals on the device."""

from __future__ import annotations

import torch


def count_experts(totals: torch.Tensor, chosen: torch.Tensor) -> None:
    """Add to `totals` [num_experts] int64 the tokens that chose each expert; `chosen` [T, per_token] holds numbers of experts.

    Nobody waits for it. A step that is captured for replay is left as it is: a decode step would pay a launch for every layer.
    """
    if not (totals.is_cuda and torch.cuda.is_current_stream_capturing()):
        experts = chosen.reshape(-1).long()
        totals.scatter_add_(0, experts, totals.new_ones(1).expand_as(experts))
