"""KV memory of one layer, as the engine lays it out."""

from __future__ import annotations

import torch

from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import PagedSpec
from octavo.ops.kv_format import FP8, restored
from octavo.worker.memory import allocate, bind


class Keeper:
    """What `bind` needs of a layer."""

    kv: torch.Tensor
    group: int

    def __init__(self, dtype: str, kv_heads: int, head_dim: int, device: str = "cpu") -> None:
        self.spec = PagedSpec(kv_heads, head_dim, dtype)
        self.kv_scales = torch.tensor([0.5, 2.0], device=device) if dtype in FP8 else None

    def kv_spec(self) -> PagedSpec:
        return self.spec

    def values(self) -> torch.Tensor:
        """[num_blocks, 2, block_tokens, kv_heads, head_dim] float32."""
        return restored(self.kv, self.kv_scales)


def memory(dtype: str, num_blocks: int, block_tokens: int, kv_heads: int, head_dim: int, device: str = "cpu") -> Keeper:
    keeper = Keeper(dtype, kv_heads, head_dim, device)
    layout = lay_out([keeper.spec], block_tokens, num_blocks * block_tokens * keeper.spec.token_bytes)
    assert layout.num_blocks == num_blocks
    bind([keeper], layout, allocate(layout, torch.device(device)))
    return keeper
