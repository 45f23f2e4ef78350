"""What a model is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from octavo.layers.env import Env
from octavo.parallel.shard import ParamSpec


@dataclass(frozen=True)
class Weight:
    """One tensor that a checkpoint may hold for a layer. A fused parameter is described whole and in parts; either will do."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor, before it is cut over ranks
    pieces: frozenset[str]  # what it fills, each piece named as a checkpoint that fuses nothing names it
    put: Callable[[torch.Tensor], object]
    optional: bool = False  # a checkpoint may lack it
    place: torch.Tensor | None = None  # where `put` copies a whole tensor as it is: who makes its numbers may write them there instead


class Layer(nn.Module):
    """Declared by its constructor, bound to an environment, filled from a checkpoint, finished, and then called.

    Its path in the model is its name in the checkpoint. Calling it is calling `forward`, without nn.Module's hooks: they would be a
    tenth of a decode step on a CPU.
    """

    def bind(self, path: str, env: Env) -> None:
        """Allocate parameters and keep what forward needs."""

    def weights(self) -> list[Weight]:
        """What the checkpoint must fill."""
        return []

    def finish(self) -> None:
        """Once, when every weight is in."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.forward(*args, **named)


def parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Room for a weight."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


def whole(place: torch.Tensor, spec: ParamSpec) -> torch.Tensor | None:
    """A weight's place, where a whole tensor goes there as it is; None where ranks cut it."""
    return place if tuple(place.shape) == spec.shape and not spec.added else None
