"""What stands for the sampler in a pipeline stage that is not the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from octavo.context import Batch
from octavo.core.plan import Plan
from octavo.sampling.sampled import Sampled
from octavo.sampling.sampler import Head, HeldRow, Recipe, Sampler


class SampledElsewhere:
    """Samples nothing. It knows the recipe of each step all the same: by it every stage decides alike whether the step is a graph."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def recipe(self, plan: Plan, held: Mapping[int, HeldRow]) -> Recipe:
        return self._sampler.recipe(plan, held)

    def plain(self, model: Head, hidden: torch.Tensor, batch: Batch) -> Sampled:
        return self._nothing(batch)

    def __call__(self, logits: torch.Tensor, batch: Batch, rows: Any, recipe: Recipe, masks: Any = None) -> Sampled:
        return self._nothing(batch)

    def _nothing(self, batch: Batch) -> Sampled:
        none = batch.sample_rows[:0]
        return Sampled(none, none[:, None], none.to(torch.float32))
