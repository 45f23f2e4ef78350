"""How the layers of a model share one KV arena: groups of equal layer count whose blocks have equal bytes.

With `m` layers a group, the arena is `m` buffers of `num_blocks * block_bytes` bytes. Layer `j` of any group lives in buffer `j`, and
block `i` of any group is slice `i` of each buffer; so all groups draw block ids from one pool, and an id belongs to one group at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.core.kv.specs import KVSpec

MAX_PADDING = 0.10  # share of the arena that no layer uses


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers with one spec and one block table. Fewer than the layout's `layers_per_group` means padding."""

    spec: KVSpec
    block_tokens: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The one arena: which layers share a block table, how large a block is, how many there are."""

    groups: tuple[KVGroup, ...]
    layers_per_group: int
    block_tokens: int  # the unit of hashing: every group's block is a multiple of it
    block_bytes: int  # of one block in one buffer
    num_blocks: int
    padding: float  # share of the arena that no layer uses
    num_buffers: int  # of the arena of one device: `layers_per_group`, or of the stage of a pipeline that needs most

    def place(self, layer: int) -> tuple[int, int]:
        """(group, buffer) in which the layer keeps its KV."""
        for number, group in enumerate(self.groups):
            if layer in group.layers:
                return number, group.layers.index(layer)
        raise KeyError(layer)

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Most blocks that a sequence of `num_tokens` tokens holds at once when it grows by at most `chunk` tokens a step."""
        return sum(group.spec.peak_blocks(num_tokens, chunk, group.block_tokens) for group in self.groups)

    def stage(self, layers: range) -> KVLayout:
        """The part of the arena that these layers are in, numbered from 0: the same groups, tables and blocks, in fewer buffers."""
        groups = tuple(
            KVGroup(group.spec, group.block_tokens, tuple(layer - layers.start for layer in group.layers if layer in layers))
            for group in self.groups
        )
        most = max(len(group.layers) for group in groups)
        return replace(self, groups=groups, layers_per_group=most, num_buffers=most)

    @property
    def arena_bytes(self) -> int:
        return self.num_blocks * self.layers_per_group * self.block_bytes


def lay_out(specs: Sequence[KVSpec], block_tokens: int, kv_bytes: int, stages: Sequence[range] = ()) -> KVLayout:
    """Group the layers (`specs[i]` is layer i's) and count the blocks that `kv_bytes` hold.

    `stages` are the layers of each pipeline stage, where there are several: every stage has `kv_bytes`, and the one that needs most for a
    block decides how many there are. A spec with fewer bytes a token gets more tokens a block. Raises ValueError where more than a tenth
    would be padding, or nothing fits.
    """
    layers_of: dict[KVSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers_of.setdefault(spec, []).append(layer)
    if not layers_of:
        raise ValueError("no layer keeps KV")
    most = max(spec.token_bytes for spec in layers_of)
    size, padding = _group_size(layers_of, most)
    if padding > MAX_PADDING:
        kinds = ", ".join(f"{len(layers)} layers of {spec.token_bytes} bytes a token" for spec, layers in layers_of.items())
        raise ValueError(f"the KV layout would waste {padding:.0%} of its memory, at most {MAX_PADDING:.0%} is accepted ({kinds})")
    block_bytes = most * block_tokens
    groups = tuple(
        KVGroup(spec, block_tokens * (most // spec.token_bytes), tuple(layers[i : i + size]))
        for spec, layers in layers_of.items()
        for i in range(0, len(layers), size)
    )
    whole = KVLayout(groups, size, block_tokens, block_bytes, 0, padding, size)
    most_buffers = max((whole.stage(layers).layers_per_group for layers in stages), default=size)
    num_blocks = kv_bytes // (most_buffers * block_bytes)
    if num_blocks < len(groups):
        size_bytes = most_buffers * block_bytes
        raise ValueError(f"kv_bytes = {kv_bytes} holds {num_blocks} blocks of {size_bytes} bytes, fewer than {len(groups)} groups")
    return replace(whole, num_blocks=num_blocks, num_buffers=most_buffers)


def _group_size(layers_of: dict[KVSpec, list[int]], most: int) -> tuple[int, float]:
    """The largest group size (fewest block tables) whose padding is acceptable, else the one with least padding."""
    best = (1, 1.0)
    for size in range(min(len(layers) for layers in layers_of.values()), 0, -1):
        used = total = 0
        for spec, layers in layers_of.items():
            used += len(layers) * spec.token_bytes * (most // spec.token_bytes)
            total += -(-len(layers) // size) * size * most
        padding = 1 - used / total
        if padding <= MAX_PADDING:
            return size, padding
        if padding < best[1]:
            best = (size, padding)
    return best
