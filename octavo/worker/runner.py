"""The hands: turns a plan into one pass of the model on this device.

Charter: only what every model and every feature shares, under 250 lines, no `if feature`, no dummy or profile modes. What differs is bound
into the parts (model, attention backend, sampler, rows) before the runner is made; warm-up, capture and idle steps are ordinary plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from octavo.attention.backend import AttentionBackend
from octavo.context import Batch, ForwardContext
from octavo.core.kv.layout import KVLayout
from octavo.core.plan import Plan, StepOutput
from octavo.sampling.prompt_scores import PromptScores
from octavo.sampling.sampled import Sampled
from octavo.sampling.sampler import Sampler
from octavo.worker.batch import BatchBuilder
from octavo.worker.rows import Rows


class Model(Protocol):
    """What the runner needs of a model; `Graphed(model)` has the same face."""

    def __call__(self, ctx: ForwardContext) -> torch.Tensor: ...  # -> hidden [T, hidden]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...  # [N, hidden] -> [N, vocab]


@dataclass(frozen=True, slots=True)
class Done:
    """A step's output that is on the host already."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output


class Runner:
    """One per device. Steps run in the order they are given, each exactly once on every rank."""

    def __init__(
        self,
        model: Model,
        rows: Rows,
        batches: BatchBuilder,
        attention: AttentionBackend,
        layout: KVLayout,
        sampler: Sampler,
        prompt_scores: PromptScores,
    ) -> None:
        self.model, self.rows, self.batches = model, rows, batches
        self.attention, self.layout = attention, layout
        self.sampler, self.prompt_scores = sampler, prompt_scores
        self._forwarded: tuple[Batch, torch.Tensor] | None = None  # of a plan whose second half has not come yet

    @torch.inference_mode()
    def step(self, plan: Plan) -> Done:
        self.forward(plan)
        return self.sample(plan)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> None:
        """First half: rows, batch and the model's pass."""
        self.rows.apply(plan)
        batch = self.batches.build(plan, self.rows)
        hidden = self.model(ForwardContext(batch, self._plan_attention(batch)))  # [T, hidden]
        self._forwarded = batch, hidden

    @torch.inference_mode()
    def sample(self, plan: Plan, masks: Any = None) -> Done:
        """Second half: logits, sampling, and what the rows note of it."""
        assert self._forwarded is not None, "sample follows the forward of the same plan"
        batch, hidden = self._forwarded
        self._forwarded = None
        recipe = self.sampler.recipe(plan, self.rows.held)
        sampled: Sampled = self.sampler(self.model.logits(hidden[batch.sample_at]), batch, self.rows, recipe)
        self.rows.record(batch, sampled)
        scores = self.prompt_scores.score(plan, lambda at: self.model.logits(hidden[at]), hidden.device)
        return Done(sampled.to_output(plan, scores))

    def close(self) -> None:
        self._forwarded = None

    def _plan_attention(self, batch: Batch) -> Sequence[Any]:
        return tuple(
            self.attention.plan(batch, number, self.rows.block_tables[number], group.block_tokens)
            for number, group in enumerate(self.layout.groups)
        )
