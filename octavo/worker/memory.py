"""The KV arena of one device: allocated once from the layout, then bound to the attention layers as views."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch

from octavo.core.kv.layout import KVLayout
from octavo.core.kv.specs import KVSpec, PagedSpec, WindowSpec


class KVLayer(Protocol):
    """A layer that keeps KV. Bound before the first step, and never again."""

    kv: torch.Tensor  # [num_blocks, 2, block_tokens, kv_heads, head_dim]
    group: int

    def kv_spec(self) -> KVSpec: ...


def allocate(layout: KVLayout, device: torch.device) -> torch.Tensor:
    """The arena, [layers_per_group, num_blocks * block_bytes] uint8, zeroed: what no step wrote is finite when it is read and masked."""
    shape = (layout.layers_per_group, layout.num_blocks * layout.block_bytes)
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, np.uint8))  # the system's zero pages: only what is used takes memory
    return torch.zeros(shape, dtype=torch.uint8, device=device)


def bind(layers: Iterable[KVLayer], layout: KVLayout, arena: torch.Tensor) -> None:
    """Give each layer, in the order of the layout's numbering, its group and its view of the arena."""
    for number, layer in enumerate(layers):
        layer.group, buffer = layout.place(number)
        group = layout.groups[layer.group]
        spec = group.spec
        assert isinstance(spec, (PagedSpec, WindowSpec)), f"no memory is known for {spec}"
        memory = arena[buffer].view(getattr(torch, spec.dtype))
        layer.kv = memory.view(layout.num_blocks, 2, group.block_tokens, spec.num_kv_heads, spec.head_dim)
