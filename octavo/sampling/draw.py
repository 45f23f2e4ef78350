"""From processed logits to tokens: the greedy choice, and the columns and numbers of the random one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.core.plan import Admission
from octavo.ops.draw import Settings, draw
from octavo.ops.noise import stream_key, uniform
from octavo.sampling.stage import Column, Columns, View
from octavo.types import SamplingParams


@dataclass(frozen=True)
class Truncation:
    """Which truncations any row of a step uses: known to the host, fixed in a captured graph."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False


NO_TRUNCATION = Truncation()

DrawOp = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], Tensor]


class Draw:
    """The random choice. Wanted by every row that is not greedy; `op` is `ops.draw.draw` or a twin of it."""

    columns = (
        Column("temperature", default=0.0),  # 0: greedy
        Column("stream", dtype=torch.int64),  # of random numbers
        Column("top_k", dtype=torch.int32),  # 0: off
        Column("top_p", default=1.0),
        Column("min_p", default=0.0),
    )

    def __init__(self, op: DrawOp = draw) -> None:
        self._op = op

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

    def settings(self, rows: Columns, uses: Truncation) -> Settings:
        """The columns of all rows, those of truncations only where they are used."""
        columns = rows.columns
        return Settings(
            columns["temperature"],
            columns["stream"],
            columns["top_k"] if uses.top_k else None,
            columns["top_p"] if uses.top_p else None,
            columns["min_p"] if uses.min_p else None,
        )

    def __call__(self, logits: torch.Tensor, peaks: torch.Tensor, view: View, uses: Truncation) -> torch.Tensor:
        """[N] int64 tokens for `logits` [N, vocab] float32 whose largest are `peaks` [N]. What a row without finite peak, or a
        greedy one, is given is of no meaning but lies in the vocabulary."""
        return self._op(
            logits,
            peaks,
            uniform(view.column("stream"), view.positions),
            view.column("temperature"),
            view.column("top_k") if uses.top_k else None,
            view.column("top_p") if uses.top_p else None,
            view.column("min_p") if uses.min_p else None,
        )
