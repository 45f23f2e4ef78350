"""Verification of drafted tokens without any change of the output.

Speculative sampling (Leviathan, Kalman and Matias 2023; Chen et al. 2023) accepts a draft x with probability min(1, p(x) / q(x)) and
replaces a refused one by a sample of max(p - q, 0), renormalised. A drafter whose proposals are certain has q(x) = 1, so the rule says:
keep x with probability p(x), else sample p without x. Sampling y from p and keeping the draft where y equals x is the same in distribution,
and y is the output either way. Since y is drawn with the number of its position, the text even equals that without drafts, token for
token; greedy rows are no special case.
"""

from __future__ import annotations

import torch


def verify(sampled: torch.Tensor, drafts: torch.Tensor, num_drafts: torch.Tensor) -> torch.Tensor:
    """How many of the `sampled` tokens count: the accepted drafts and one more. [n] int64, from 1 to 1 + K.

    `sampled` [n, 1 + K] int64: sampled[:, j] follows the first j drafts. `drafts` [n, K] int64, of which `num_drafts` [n] are real.
    Fixed shapes and no host, so it can be captured in a graph.
    """
    real = torch.arange(drafts.shape[1], device=drafts.device) < num_drafts[:, None]  # [n, K]
    agreed = (sampled[:, :-1] == drafts) & real
    return 1 + agreed.long().cumprod(-1).sum(-1)
