"""How a layer's parameters are cut over the ranks of a tensor-parallel group. `cut` is the only code that slices weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from octavo.parallel.mesh import Group


class Shard(Enum):
    """Along which side of a layer its parameters are cut."""

    OUT = "out"
    IN = "in"
    NONE = "none"


@dataclass(frozen=True)
class Extent:
    """One side of a layer, or a named part of a fused side: `size` features that are cut only between units.

    Where there are fewer units than ranks, neighbouring ranks hold the same unit (kv heads). `padded` sides (the vocabulary) are cut
    at any place, and the last ranks get zeros beyond the end.
    """

    size: int
    unit: int = 1
    name: str = ""
    padded: bool = False

    def share(self, group: Group) -> tuple[int, int]:
        """Where this rank's features begin, and how many there are (with padding, where padded).

        Raises ValueError, with the group sizes that work, when units and ranks do not divide each other.
        """
        if self.padded:
            count = -(-self.size // group.size)
            return count * group.rank, count
        units = self.size // self.unit
        if self.size % self.unit or (units % group.size and group.size % units):
            works = [size for size in range(1, units + 1) if units % size == 0]
            raise ValueError(f"{self.name or 'a layer'} of {units} units cannot be cut over {group.size} ranks; sizes that work: {works}")
        if units >= group.size:
            count = units // group.size
            return group.rank * count * self.unit, count * self.unit
        return group.rank * units // group.size * self.unit, self.unit


@dataclass(frozen=True)
class ParamSpec:
    """One parameter of a layer as a scheme wants it stored.

    `axes` says for each dimension which side of the layer it runs along ("out", "in", or None for neither), `grain` how many features
    of that side one index stands for (1 for plain weights, the group size for scales by group, 8 for int4 packed in int32).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    axes: tuple[str | None, ...]
    grain: tuple[int, ...] = ()
    added: bool = False  # added to the layer's result: where ranks sum their results, only rank 0 may hold it

    def grain_of(self, axis: int) -> int:
        return self.grain[axis] if self.grain else 1


def cut(tensor: torch.Tensor, spec: ParamSpec, shard: Shard, extent: Extent, group: Group) -> torch.Tensor:
    """This rank's piece of a whole parameter that covers `extent` on the cut side. What does not run along that side stays whole."""
    if shard is Shard.NONE or group.size == 1:
        return tensor
    if shard.value not in spec.axes:
        return torch.zeros_like(tensor) if spec.added and group.rank else tensor
    axis = spec.axes.index(shard.value)
    grain = spec.grain_of(axis)
    start, count = extent.share(group)
    if start % grain or count % grain:
        raise ValueError(f"{extent.name or 'a layer'}: pieces of {count} features do not end between groups of {grain}")
    start, count = start // grain, count // grain
    here = max(0, min(count, tensor.shape[axis] - start))
    piece = tensor.narrow(axis, min(start, tensor.shape[axis]), here)
    if here == count:
        return piece
    padding = list(tensor.shape)
    padding[axis] = count - here
    return torch.cat((piece, tensor.new_zeros(padding)), dim=axis)
