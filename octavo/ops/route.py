"""Which experts each token goes to, by the router's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from octavo.config.experts import Choice
from octavo.ops.count_experts import count_experts


@dataclass(frozen=True)
class Routes:
    """The experts of T tokens: T * per_token pairs of a token and an expert, those of a token side by side.

    Experts are counted from the first that this rank holds; a number below 0 or from `num_experts` on is another rank's.
    """

    chosen: torch.Tensor  # [T, per_token] int32
    weights: torch.Tensor  # [T, per_token] float32: what their results are multiplied by
    num_experts: int  # here
    work: Any = None  # how a twin shares out the pairs, made once for all products of a layer

    @property
    def num_pairs(self) -> int:
        return self.chosen.numel()


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, choice: Choice, totals: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts [T, per_token] int32, in any order, and their weights [T, per_token] float32.

    logits      [T, num_experts]
    correction  [num_experts] float32, added to the scores where experts are chosen; None: nothing is
    totals      [num_experts] int64, to which the tokens of each expert are added; None: nobody counts

    The lower number wins where scores are equal. Group-limited choice: DeepSeek-V2, arXiv 2405.04434; sigmoid scores with a
    correction: DeepSeek-V3, arXiv 2412.19437.
    """
    wide = logits.float()
    scores = wide.sigmoid() if choice.score == "sigmoid" else wide.softmax(-1)  # [T, E]
    ranked = scores if correction is None else scores + correction
    if choice.num_groups > 1:
        groups = ranked.unflatten(1, (choice.num_groups, -1))  # [T, G, E / G]
        worth = groups.topk(choice.group_best, dim=-1).values.sum(-1)
        best = first_best(worth, choice.groups_per_token)
        kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, best, True)
        ranked = groups.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = first_best(ranked, choice.per_token)
    weights = scores.gather(1, chosen)
    if choice.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    if totals is not None:
        count_experts(totals, chosen)
    return chosen.int(), weights * choice.scale


def first_best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Places [T, count] of the largest in each row of `values` [T, n], the largest first, the lower place of equals first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]
