"""The random choice of a token: temperature, min_p, top_k and top_p, and the draw from what they keep.

A weight is `exp((logit - largest) / temperature)`, so the largest weight is 1 and weights are probabilities up to one factor. The
truncations apply in this order, each to what the former left: min_p keeps weights >= min_p; top_k the k largest; top_p the smallest set of
the largest ones whose share of the mass is at least p. Tokens that tie at a border are all kept, so the result depends on no sort order,
and all three come to one threshold a row.

The draw inverts the cumulative distribution, in vocabulary order, with one uniform number a row: nothing as wide as the vocabulary is
hashed, and a row's token depends on its own logits, settings and number alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from octavo.ops.best import best
from octavo.ops.noise import uniform


class Settings(NamedTuple):
    """How each row [R] of a device draws; None where no row uses it."""

    temperature: torch.Tensor  # float32, 0: greedy
    stream: torch.Tensor  # int64, of random numbers
    top_k: torch.Tensor | None  # int32
    top_p: torch.Tensor | None  # float32
    min_p: torch.Tensor | None  # float32


def draw_rows(
    logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, at: torch.Tensor, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N] int64 and largest logits [N] float32 of logits [N, n]: drawn for the rows that have a temperature, else the largest.

    `rows` [N] int64 are their rows in `settings`; the token after `positions[at]` [N] is sampled.
    """
    logits = logits.float()
    tokens, peaks = best(logits)
    temperature, stream, top_k, top_p, min_p = (None if column is None else column[rows] for column in settings)
    assert temperature is not None
    assert stream is not None
    drawn = draw(logits, peaks, uniform(stream, positions[at] + 1), temperature, top_k, top_p, min_p)
    return torch.where(temperature > 0, drawn, tokens), peaks


def draw(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    numbers: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    """Tokens [N] int64 for `logits` [N, n] float32, whose largest are `peaks` [N], by `numbers` [N] float64 in [0, 1 - 2^-52].

    `temperature` [N] float32; `top_k` [N] int32 (0: off), `top_p` [N] float32 (1: off) and `min_p` [N] float32, None where no row has it.
    A row whose peak is not finite or whose temperature is 0 gets some token of the vocabulary. Fixed shapes, and no value is needed on the
    host: it can be captured in a graph.
    """
    temperature = torch.where(temperature > 0, temperature, 1.0)
    weights = (logits - peaks[:, None]).div_(temperature[:, None]).exp_()  # [N, n]
    if top_k is not None or top_p is not None or min_p is not None:
        least = thresholds(weights, top_k, top_p, min_p)
        weights = torch.where(weights >= least[:, None], weights, 0.0)
    mass = weights.cumsum(-1, dtype=torch.float64)
    place = numbers[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, place, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def thresholds(
    weights: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None
) -> torch.Tensor:
    """[N] float32: the weight under which a row's tokens are dropped. `weights` [N, n] float32."""
    ordered = weights.sort(-1, descending=True).values  # [N, n]
    least = torch.zeros_like(weights[:, 0]) if min_p is None else min_p  # [N]
    if top_k is not None:
        kth = ordered.gather(1, (top_k - 1).clamp(0, weights.shape[1] - 1).long()[:, None])[:, 0]
        least = torch.where(top_k > 0, torch.maximum(least, kth), least)
    if top_p is not None:
        mass = torch.where(ordered >= least[:, None], ordered, 0.0).cumsum(-1, dtype=torch.float64)
        reached = (mass < top_p[:, None] * mass[:, -1:]).sum(-1, keepdim=True)
        last = ordered.gather(1, reached.clamp(max=weights.shape[1] - 1))[:, 0]
        least = torch.where(top_p < 1, torch.maximum(least, last), least)
    return least
