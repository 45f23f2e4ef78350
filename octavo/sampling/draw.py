"""From processed logits to tokens: the greedy choice, and the random one by inverting the cumulative distribution.

One uniform number a row decides, so nothing as wide as the vocabulary is hashed. The cumulative sum runs in vocabulary order over what
`truncate` kept, in float64: a row's token depends on its own logits, parameters and number alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.core.plan import Admission
from octavo.sampling.noise import stream_key, uniform
from octavo.sampling.stage import Column, View
from octavo.sampling.truncate import threshold_of, thresholds
from octavo.types import SamplingParams

_BLOCK = 256  # weights summed at once on the host before the exact place is looked for


@dataclass(frozen=True)
class Truncation:
    """Which truncations any row of a step uses: known to the host, fixed in a captured graph."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False


NO_TRUNCATION = Truncation()


class Draw:
    """The random choice. Wanted by every row that is not greedy."""

    columns = (
        Column("temperature", default=0.0),  # 0: greedy
        Column("stream", dtype=torch.int64),  # of random numbers
        Column("top_k", dtype=torch.int32),  # 0: off
        Column("top_p", default=1.0),
        Column("min_p", default=0.0),
    )

    def wants(self, params: SamplingParams) -> bool:
        return not params.greedy and params.top_k != 1

    def fill(self, admission: Admission) -> Mapping[str, Any]:
        params = admission.params
        return {
            "temperature": params.temperature,
            "stream": stream_key(admission.seed, admission.index),
            "top_k": min(max(params.top_k, 0), 2**31 - 1),
            "top_p": params.top_p,
            "min_p": params.min_p,
        }

    def __call__(self, logits: torch.Tensor, peaks: torch.Tensor, view: View, uses: Truncation) -> torch.Tensor:
        """[N] int64 tokens for `logits` [N, vocab] float32 whose largest are `peaks` [N]. What a row without finite peak, or a
        greedy one, is given is of no meaning but lies in the vocabulary."""
        numbers = uniform(view.column("stream"), view.positions)
        weights = _weights(logits, peaks, view)
        if logits.device.type == "cpu":
            return _draw_on_host(weights, view, numbers)
        return _draw_on_device(weights, view, numbers, uses)


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N] int64 and logits [N] of the largest in each row; the lowest id of equals; NaN counts as largest."""
    if logits.device.type == "cpu":  # numpy's argmax is ten times quicker there
        rows = logits.numpy()
        tokens = rows.argmax(-1)
        return torch.from_numpy(tokens), torch.from_numpy(rows[np.arange(len(rows)), tokens])
    peaks, tokens = logits.max(-1)
    return tokens, peaks


def _weights(logits: torch.Tensor, peaks: torch.Tensor, view: View) -> torch.Tensor:
    """[N, vocab] probabilities up to a factor; the largest of each row is 1. All NaN where the largest logit is not finite."""
    peaks = peaks + (peaks - peaks)
    temperature = view.column("temperature")
    temperature = torch.where(temperature > 0, temperature, 1.0)
    return (logits - peaks[:, None]).div_(temperature[:, None]).exp_()


def _draw_on_device(weights: torch.Tensor, view: View, numbers: torch.Tensor, uses: Truncation) -> torch.Tensor:
    if uses != NO_TRUNCATION:
        least = thresholds(
            weights,
            view.column("top_k") if uses.top_k else None,
            view.column("top_p") if uses.top_p else None,
            view.column("min_p") if uses.min_p else None,
        )
        weights = torch.where(weights >= least[:, None], weights, 0.0)
    mass = weights.cumsum(-1, dtype=torch.float64)
    place = numbers[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, place, right=True)[:, 0].clamp(max=weights.shape[1] - 1)


def _draw_on_host(weights: torch.Tensor, view: View, numbers: torch.Tensor) -> torch.Tensor:
    """Row by row in numpy: on vectors of this size it is quicker than torch, which would wake threads for each step."""
    settings = zip(*(view.column(name).tolist() for name in ("top_k", "top_p", "min_p")), strict=True)
    rows = zip(weights.numpy(), numbers.tolist(), settings, strict=True)
    return torch.tensor([_draw_row(row, number, *setting) for row, number, setting in rows], dtype=torch.int64)


def _draw_row(weights: np.ndarray, number: float, top_k: int, top_p: float, min_p: float) -> int:
    if np.isnan(weights[0]):
        return 0
    least = threshold_of(weights, top_k, top_p, min_p)
    if least == 0:
        return _invert(weights, number)
    kept = np.flatnonzero(weights >= least)
    return int(kept[_invert(weights[kept], number)])


def _invert(weights: np.ndarray, number: float) -> int:
    """The index at which the cumulative sum of `weights` first exceeds `number` of the total."""
    whole = weights.size - weights.size % _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(-1, dtype=np.float64)
    before = np.concatenate(([0.0], np.cumsum(blocks)))  # mass before each block, and before the rest
    place = number * (before[-1] + weights[whole:].sum(dtype=np.float64))
    block = int(np.searchsorted(before, place, side="right")) - 1
    inside = before[block] + np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    index = int(np.searchsorted(inside, place, side="right"))
    if index == inside.size:  # rounding put the place past the block: its last token that has weight
        index = int(np.flatnonzero(weights[block * _BLOCK : (block + 1) * _BLOCK])[-1])
    return block * _BLOCK + index
