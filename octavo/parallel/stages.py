"""Which layers a pipeline stage holds, and a model that is one stage of several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from octavo.context import ForwardContext
from octavo.parallel.mesh import Group


@dataclass(frozen=True)
class Stage:
    """The layers of one pipeline rank: the first also embeds, the last also has the final norm and the head."""

    layers: range
    first: bool = True
    last: bool = True


def stage(num_layers: int, rank: int, size: int) -> Stage:
    """Rank `rank` of `size`. Every layer is on exactly one stage, in order; the stages that carry the embedding or the head are not
    the longer ones as long as there is a choice. Raises ValueError when there are fewer layers than stages."""
    if size > num_layers:
        raise ValueError(f"pipeline_parallel_size = {size} is more than the model's {num_layers} layers; use at most {num_layers}")
    each, extra = divmod(num_layers, size)
    longer_from = max(0, size - 1 - extra)  # the extra layers go to the stages just before the last
    counts = [each + (longer_from <= i < longer_from + extra) for i in range(size)]
    start = sum(counts[:rank])
    return Stage(range(start, start + counts[rank]), first=rank == 0, last=rank == size - 1)


def stages(num_layers: int, size: int) -> list[range]:
    """The layers of every rank."""
    return [stage(num_layers, rank, size).layers for rank in range(size)]


class Model(Protocol):
    """What the runner needs of a model."""

    def __call__(self, ctx: ForwardContext, /) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor: ...

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class StagedModel:
    """The model's face for one stage of several: takes the hidden state from the stage before, hands its own to the next.

    All stages run the same batches in the same order, so each knows the shape of what comes. Only the last stage has logits.
    """

    def __init__(self, model: Model, group: Group, room: torch.Tensor) -> None:
        """`room` [max tokens, hidden] takes what the stage before sends."""
        self._model, self._group, self._room = model, group, room

    def __call__(self, ctx: ForwardContext) -> torch.Tensor:
        rank = self._group.rank
        if rank > 0:
            ctx = replace(ctx, hidden_in=self._group.receive(self._room[: ctx.batch.tokens.shape[0]], rank - 1))
        hidden = self._model(ctx)
        if rank + 1 < self._group.size:
            self._group.send(hidden, rank + 1)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of a stage that is not the last, the hidden state itself, of which nobody makes anything."""
        return self._model.logits(hidden) if self._group.rank + 1 == self._group.size else hidden

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the last stage only."""
        return self._model.best(hidden)
