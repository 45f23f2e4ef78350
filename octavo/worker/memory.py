"""The KV arena of one device: allocated once from the layout, then bound to the attention layers as views."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from torch import nn

from octavo.core.kv.layout import KVLayout
from octavo.core.kv.specs import SCALE_BYTES, KVSpec
from octavo.ops.kv_format import kv_dtype

HUGE_FROM_BYTES = 1 << 28


class KVLayer(Protocol):
    """A layer that keeps KV. Bound before the first step, and never again."""

    kv: torch.Tensor  # [num_blocks, 2, block_tokens, kv_heads, head_dim]; of latents [num_blocks, 1, block_tokens, 1, width]
    kv_scales: torch.Tensor | None  # see octavo.ops.kv_format
    group: int

    def kv_spec(self) -> KVSpec: ...


def allocate(layout: KVLayout, device: torch.device) -> torch.Tensor:
    """The arena, [layers_per_group, num_blocks * block_bytes] uint8, zeroed: what no step wrote is finite when it is read and masked."""
    shape = (layout.layers_per_group, layout.num_blocks * layout.block_bytes)
    return zeros(shape, torch.uint8, device)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU the system's zero pages: only what is used takes memory. Large memory lies on huge pages, which one sequence would touch
    all of if there were few of them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not num_bytes:
        return torch.zeros(shape, dtype=dtype, device=device)
    if num_bytes >= HUGE_FROM_BYTES:
        memory = np.zeros(num_bytes, np.uint8)  # numpy asks for huge pages
    else:
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def held(model: nn.Module, layout: KVLayout, row_bytes: int, device: torch.device) -> dict[str, int]:
    """Bytes that a worker holds when it has started, by the names of the plan; on a GPU also what all of it is in use."""
    packed = [part for module in model.modules() for part in getattr(module, "packed", ()) if isinstance(part, torch.Tensor)]
    tensors = [*model.parameters(), *model.buffers(), *packed]
    weights = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    found = {"weight_bytes": sum(weights.values()), "kv_bytes": layout.arena_bytes, "row_bytes": row_bytes}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found["used_bytes"] = total - free
    return found


def bind(layers: Iterable[KVLayer], layout: KVLayout, arena: torch.Tensor) -> None:
    """Give each layer, in the order of the layout's numbering, its group and its view of the arena.

    In a block, K and V of all its tokens come first, then their scales, where the format has one a token and head.
    """
    for number, layer in enumerate(layers):
        layer.group, buffer = layout.place(number)
        group = layout.groups[layer.group]
        spec = group.spec
        shape = spec.block_shape(group.block_tokens)
        blocks = arena[buffer].view(layout.num_blocks, layout.block_bytes)
        used = group.block_tokens * spec.token_bytes
        scales_at = used - math.prod(shape[:3]) * SCALE_BYTES.get(spec.dtype, 0)
        layer.kv = blocks[:, :scales_at].view(kv_dtype(spec.dtype)).unflatten(1, shape)
        if scales_at < used:
            layer.kv_scales = blocks[:, scales_at:used].view(torch.float16).unflatten(1, shape[:3])
