"""What a walk over a model binds to its layers, and how layers tell the loader what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.attention.backend import AttentionBackend
from octavo.config.architecture import Rope
from octavo.ops.select import Ops
from octavo.parallel.mesh import Mesh
from octavo.quant.scheme import Scheme


@dataclass(frozen=True)
class Env:
    device: torch.device
    dtype: torch.dtype  # of activations and plain weights
    kv_dtype: str
    ops: Ops
    attention: AttentionBackend
    mesh: Mesh
    scheme: Callable[[str], Scheme]  # by the path of a linear layer
    rope_table: Callable[[Rope], torch.Tensor]  # [max_length, rotated] float32: cosines, then sines


@dataclass(frozen=True)
class Weight:
    """One tensor that a checkpoint may hold for a layer. A fused parameter is described whole and in parts; either will do."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor, before it is cut over ranks
    pieces: frozenset[str]  # what it fills, each piece named as a checkpoint that fuses nothing names it
    put: Callable[[torch.Tensor], object]


class Bound(Protocol):
    """A module that `materialize` binds. Its path in the model is its name in the checkpoint."""

    def bind(self, path: str, env: Env) -> None:
        """Allocate parameters and keep what forward needs."""
        ...

    def weights(self) -> list[Weight]:
        """What the checkpoint must fill."""
        ...

    def finish(self) -> None:
        """Once, when every weight is in."""
        ...


def parameter(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
