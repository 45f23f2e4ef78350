"""What a walk over a model binds to its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo.attention.backend import AttentionBackend
from octavo.config.rope import Rope
from octavo.ops.select import Ops
from octavo.parallel.dispatch import Dispatch, Local
from octavo.parallel.mesh import Mesh
from octavo.quant.checkpoint import ChooseScheme


@dataclass(frozen=True)
class Env:
    device: torch.device
    dtype: torch.dtype  # of activations and plain weights
    kv_dtype: str
    ops: Ops
    attention: AttentionBackend
    mesh: Mesh
    scheme: ChooseScheme
    rope_table: Callable[[Rope], torch.Tensor]  # [max_length, rotated] float32: cosines, then sines
    dispatch: Callable[[Mesh, int], Dispatch] = Local  # of tokens to so many experts
