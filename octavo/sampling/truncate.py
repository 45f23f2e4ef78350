"""min_p, top_k and top_p as one threshold a row: a token stays if its weight is not under it.

A weight is `exp((logit - largest) / temperature)`, so the largest weight is 1 and weights are probabilities up to one factor. The three
apply in this order, each to what the former left: min_p keeps weights >= min_p; top_k the k largest; top_p the smallest set of the
largest ones whose share of the mass is at least p. Tokens that tie at a border are all kept, so the result depends on no sort order.

Two ways to the same thresholds: on the host a partial sort of the few candidates of each row; on a device a bisection over the bits of
the weights (positive floats order like their bit patterns), which has fixed shapes, needs no sort and can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

_ONE_BITS = 0x3F800000  # of 1.0, the largest weight
_BITS = 30  # enough halvings of [0, _ONE_BITS]


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
    bits = weights.view(torch.int32)
    lowest = torch.zeros(weights.shape[0], dtype=torch.int32, device=weights.device)  # [N] thresholds as bits
    if min_p is not None:
        lowest = min_p.view(torch.int32)
    if top_k is not None:
        wanted = torch.where(top_k > 0, top_k, weights.shape[1]).clamp(max=weights.shape[1])
        largest = _bisect(lambda t: (bits >= t[:, None]).sum(-1) >= wanted, lowest)
        lowest = torch.maximum(lowest, largest)
    if top_p is not None:
        live = torch.where(bits >= lowest[:, None], weights, 0.0)
        wanted = top_p * live.sum(-1, dtype=torch.float64)
        largest = _bisect(lambda t: torch.where(bits >= t[:, None], live, 0.0).sum(-1, dtype=torch.float64) >= wanted, lowest)
        lowest = torch.where(top_p < 1, torch.maximum(lowest, largest), lowest)
    return lowest.view(torch.float32)


def _bisect(holds: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The largest bit pattern for which `holds`, which is true at 0 and false from some pattern on. [N] int32."""
    low = torch.zeros_like(like)
    high = torch.full_like(like, _ONE_BITS + 1)
    for _ in range(_BITS):
        middle = low + (high - low) // 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return low
