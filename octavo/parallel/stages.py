"""A model that is one stage of several in a pipeline. Which layers a stage holds says octavo/config/stages.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from octavo.context import ForwardContext
from octavo.parallel.mesh import Group


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
