"""min_p, top_k and top_p as one threshold a row: a token stays if its weight is not under it.

A weight is `exp((logit - largest) / temperature)`, so the largest weight is 1 and weights are probabilities up to one factor. The three
apply in this order, each to what the former left: min_p keeps weights >= min_p; top_k the k largest; top_p the smallest set of the
largest ones whose share of the mass is at least p. Tokens that tie at a border are all kept, so the result depends on no sort order.

Two ways to the same thresholds: on the host a partial sort of the few candidates of each row; on a device one sort of all rows, which has
fixed shapes and can be captured in a graph.
"""

from __future__ import annotations

import numpy as np
import torch


def threshold_of(weights: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.float32:
    """The threshold of one row on the host. `weights` [vocab] float32; top_k 0 or top_p 1 are off."""
    threshold = np.float32(min_p)
    if 0 < top_k < weights.size:
        threshold = max(threshold, np.partition(weights, -top_k)[-top_k])
    if top_p < 1:
        live = weights[weights >= threshold]
        total = live.sum(dtype=np.float64)
        # All tokens under (1 - p) * total / n weigh less than (1 - p) * total together, so none of them is needed to reach p * total.
        top = np.sort(live[live >= np.float32(0.999 * (1 - top_p) * total / live.size)])[::-1]
        reached = np.searchsorted(np.cumsum(top, dtype=np.float64), top_p * total)
        threshold = max(threshold, top[min(reached, top.size - 1)])
    return threshold


def thresholds(
    weights: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None
) -> torch.Tensor:
    """[N] float32: the thresholds of all rows on a device. `weights` [N, vocab] float32; None where no row uses a truncation.

    `top_k` [N] int32 (0: off), `top_p` [N] float32 (1: off), `min_p` [N] float32.
    """
    ordered = weights.sort(-1, descending=True).values  # [N, vocab]
    lowest = torch.zeros_like(weights[:, 0]) if min_p is None else min_p  # [N]
    if top_k is not None:
        kth = ordered.gather(1, (top_k - 1).clamp(0, weights.shape[1] - 1).long()[:, None])[:, 0]
        lowest = torch.where(top_k > 0, torch.maximum(lowest, kth), lowest)
    if top_p is not None:
        mass = torch.where(ordered >= lowest[:, None], ordered, 0.0).cumsum(-1, dtype=torch.float64)
        reached = (mass < top_p[:, None] * mass[:, -1:]).sum(-1, keepdim=True)
        last = ordered.gather(1, reached.clamp(max=weights.shape[1] - 1))[:, 0]
        lowest = torch.where(top_p < 1, torch.maximum(lowest, last), lowest)
    return lowest
