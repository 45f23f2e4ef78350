"""The hands: turns a plan into one pass of the model on this device.

Charter: only what every model and every feature shares, under 250 lines, no `if feature`, no dummy or profile modes. What differs is bound
into the parts (model, attention backend, sampler, rows) before the runner is made; warm-up, capture and idle steps are ordinary plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from octavo.attention.backend import AttentionBackend
from octavo.context import UNPADDED, Batch, ForwardContext, Room
from octavo.core.kv.layout import KVLayout
from octavo.core.plan import Plan
from octavo.sampling.elsewhere import SampledElsewhere
from octavo.sampling.grammar import Masks, unpack
from octavo.sampling.reader import Reader
from octavo.sampling.sampled import Fetching, Sampled
from octavo.sampling.sampler import Recipe, Sampler
from octavo.worker.batch import BatchBuilder
from octavo.worker.rows import Rows


class Model(Protocol):
    """What the runner needs of a model; `Graphed(model)` has the same face."""

    def __call__(self, ctx: ForwardContext, /) -> torch.Tensor: ...  # -> hidden [T, hidden]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...  # [N, hidden] -> [N, vocab]

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...  # [N, hidden] -> tokens [N], their logits [N]


class Graphs(Protocol):
    """Whole steps that were captured before (octavo/capture/decode.py)."""

    def capture(self, recipes: Sequence[Recipe]) -> None: ...

    def step(self, plan: Plan, recipe: Recipe, longest: int) -> Sampled | None:
        """`longest`: no context of the plan is longer after it."""
        ...


class Passes(Protocol):
    """How the model runs over a batch, and what the batch is padded to for that (octavo/capture/passes.py)."""

    def room(self, num_tokens: int, num_slices: int) -> Room: ...

    def run(self, batch: Batch, room: Room) -> torch.Tensor: ...  # -> hidden [T, hidden]

    def record(self, batch: Batch, room: Room) -> None: ...


class OpByOp:
    """Nothing was captured."""

    def __init__(self, run: Callable[[Batch], torch.Tensor]) -> None:
        self._run = run

    def capture(self, recipes: Sequence[Recipe]) -> None:
        pass

    def step(self, plan: Plan, recipe: Recipe, longest: int) -> Sampled | None:
        return None

    def room(self, num_tokens: int, num_slices: int) -> Room:
        return UNPADDED

    def run(self, batch: Batch, room: Room) -> torch.Tensor:
        return self._run(batch)

    def record(self, batch: Batch, room: Room) -> None:
        pass


class Runner:
    """One per device. Steps run in the order they are given, each exactly once on every rank."""

    def __init__(
        self,
        model: Model,
        rows: Rows,
        batches: BatchBuilder,
        attention: AttentionBackend,
        layout: KVLayout,
        sampler: Sampler | SampledElsewhere,
        readers: Sequence[Reader],
    ) -> None:
        self.model, self.rows, self.batches = model, rows, batches
        self.attention, self.layout = attention, layout
        self.sampler, self.readers = sampler, readers
        self.forget_captured()
        self.orders: dict[str, Callable[..., Any]] = {}  # what else can be asked of this worker, between steps; they know the runner
        self._forwarded: tuple[Batch, torch.Tensor] | None = None  # of a plan whose second half has not come yet

    def forget_captured(self) -> None:
        """From now on every step runs operation by operation."""
        op_by_op = OpByOp(self.run)
        self.graphs: Graphs = op_by_op
        self.passes: Passes = op_by_op

    @torch.inference_mode()
    def step(self, plan: Plan) -> Fetching:
        """Launch a whole step. The device may still run when this returns; the result waits for it."""
        self.rows.apply(plan)
        sampled = self.graphs.step(plan, self.sampler.recipe(plan, self.rows.held), self.rows.bounds.longest)
        if sampled is not None:
            for reader in self.readers:
                reader.follow(plan)
            return sampled.fetch(plan)
        self._forward(plan)
        return self.sample(plan)

    @torch.inference_mode()
    def forward(self, plan: Plan) -> None:
        """First half of a step whose sampling has to wait: rows, batch and the model's pass."""
        self.rows.apply(plan)
        self._forward(plan)

    @torch.inference_mode()
    def sample(self, plan: Plan, masks: Sequence[bytes | None] = ()) -> Fetching:
        """Second half: logits, sampling, and what the rows note of it. `masks`: token bits for each of the plan's masked slices."""
        assert self._forwarded is not None, "sample follows the forward of the same plan"
        batch, hidden = self._forwarded
        self._forwarded = None
        recipe = self.sampler.recipe(plan, self.rows.held)
        sampled = self._sampled(batch, hidden[batch.sample_at], recipe, unpack(plan, masks))
        return sampled.fetch(plan, [reader.read(plan, hidden, self.model.logits) for reader in self.readers])

    @torch.inference_mode()
    def waiting_logits(self) -> torch.Tensor:
        """[N, vocab] of the plan that was only forwarded yet, at its sampled positions."""
        assert self._forwarded is not None, "nothing was forwarded"
        batch, hidden = self._forwarded
        return self.model.logits(hidden[batch.sample_at])[: len(batch.sample_rows)]

    @torch.inference_mode()
    def decode(self, row_ids: torch.Tensor, recipe: Recipe, max_length: int) -> Sampled:
        """One token for each of these rows [S], by operations on the device alone: what a graph captures, for contexts up to a length."""
        batch = self.batches.decode(row_ids, self.rows, max_length)
        return self._sampled(batch, self.run(batch), recipe)

    def _sampled(self, batch: Batch, hidden: torch.Tensor, recipe: Recipe, masks: Masks | None = None) -> Sampled:
        """Sample from the hidden state of the sampled positions, which may be padded, and let the rows note it."""
        if recipe.plain and masks is None:
            sampled = self.sampler.plain(self.model, hidden, batch)
        else:
            logits = self.model.logits(hidden)[: len(batch.sample_rows)]  # without padding
            sampled = self.sampler(logits, batch, self.rows, recipe, masks)
        self.rows.record(batch, sampled)
        return sampled

    @torch.inference_mode()
    def record_pass(self, num_tokens: int, num_slices: int) -> None:
        """Record the pass over steps that fit into this room, before the first of them comes."""
        room = Room(num_tokens, num_slices)
        self.passes.record(self.batches.build(Plan(0), self.rows, room), room)

    def enter_thread(self) -> None:
        if self.rows.computed.is_cuda:
            torch.cuda.set_device(self.rows.computed.device)

    def close(self) -> None:
        self._forwarded = None

    def _forward(self, plan: Plan) -> None:
        together = plan.num_tokens_all  # of replicas that step together, who must all take the same way: so it follows from this alone
        room = self.passes.room(together or plan.num_tokens, min(together, self.rows.padding) or len(plan.slices))
        batch = self.batches.build(plan, self.rows, room)
        self._forwarded = batch, self.passes.run(batch, room)

    def run(self, batch: Batch) -> torch.Tensor:
        """The model's pass over a batch, by operations on the device alone: hidden [T, hidden]."""
        plans = (
            self.attention.plan(batch, number, self.rows.block_tables[number], group.block_tokens)
            for number, group in enumerate(self.layout.groups)
        )
        return self.model(ForwardContext(batch, tuple(plans)))
