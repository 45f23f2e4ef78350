"""Experts stored in MXFP4 as plain tensors, expert by expert, for products that take no packed weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.models.tensors import CheckpointError, LazyTensor

if TYPE_CHECKING:
    import torch

BLOCKS, SCALES = "_blocks", "_scales"  # ends of the names of the two tensors that a weight lies in
PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # whose rows lie in turn


@dataclass(frozen=True, kw_only=True)
class WidenedExpert(LazyTensor):
    """Every `step`-th row of one expert's weight from row `first` on, [out, in]; `data` are the codes of the whole expert."""

    scales: np.ndarray  # [out * step, in / 32]
    first: int
    step: int

    def load(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        import torch

        from octavo.ops.mxfp4 import halves, scaled

        mine = slice(self.first, None, self.step)
        blocks = torch.from_numpy(self.data.reshape(*self.scales.shape, -1)[mine].copy())
        return scaled(halves(blocks), torch.from_numpy(self.scales[mine].copy()), dtype or torch.bfloat16)


def widened(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Of a checkpoint, with plain tensors in place of those in MXFP4. Raises `CheckpointError`."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(BLOCKS):
            found.update(_experts(name.removesuffix(BLOCKS), tensor, tensors))
        elif not (name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in tensors):
            found[name] = tensor
    return found


def _experts(path: str, blocks: LazyTensor, tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, LazyTensor]]:
    folder, _, name = path.rpartition(".")
    scales = tensors.get(path + SCALES)
    if scales is None or name not in PARTS or blocks.shape != (*scales.shape, 16) or len(scales.shape) != 3:
        raise CheckpointError(f"{path + BLOCKS} of shape {blocks.shape} is no weight of experts in MXFP4 with its scales")
    num, rows, groups = scales.shape
    parts = PARTS[name]
    codes, powers = blocks.data.reshape(num, -1), scales.data.reshape(scales.shape)
    for expert in range(num):
        for first, part in enumerate(parts):
            shape = (rows // len(parts), groups * 32)
            yield f"{folder}.{expert}.{part}.weight", WidenedExpert(
                shape, "BF16", codes[expert], scales=powers[expert], first=first, step=len(parts)
            )
