"""Attention of a token that depends on its own context alone, whatever else is in the batch, and however its prompt is cut into steps.

On a GPU every slice goes by tiles, also one of a single token, with one tuning and its whole context in one program: a row of a tile goes
through its keys in one order, wherever in a tile it lies. On the CPU every token is a slice of its own, with its context in one piece.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from octavo.attention.backend import AttentionShape
from octavo.attention.cpu import NativeAttention, NativePlan
from octavo.attention.triton import TileTuning, TritonAttention, TritonPlan
from octavo.context import Batch

TILES = TileTuning(block_m=64, block_n=64, num_warps=4, num_stages=2)
NARROW = TileTuning(block_m=32, block_n=16, num_warps=4, num_stages=2)  # for rows of over 512 bytes, and for float32
NO_TOKENS = 0  # slices of at most so many tokens go by pieces


class InvariantTriton(TritonAttention):
    name = "triton_invariant"

    def __init__(self) -> None:
        super().__init__()
        self.supports = replace(self.supports, invariant=True)

    def run(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        wide = shape.head_dim > 128 or q.element_size() > 2
        self._run_tiles(plan, q, kv, scales, sinks, shape, out, NO_TOKENS, NARROW if wide else TILES)
        return out


class InvariantNative(NativeAttention):
    name = "cpu_invariant"
    whole = True

    def __init__(self) -> None:
        super().__init__()
        self.supports = replace(self.supports, invariant=True)

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> NativePlan:
        return NativePlan(batch if batch.max_count == 1 else token_by_token(batch), block_table)


def token_by_token(batch: Batch) -> Batch:
    """The same tokens, each as a slice of its own."""
    counts = batch.starts.diff()  # [S]
    lengths = (batch.positions[: batch.num_tokens] + 1).to(torch.int32)
    return replace(
        batch,
        starts=torch.arange(batch.num_tokens + 1, dtype=torch.int32),
        lengths=lengths,
        rows=batch.rows.repeat_interleave(counts, output_size=batch.num_tokens),
        num_slices=batch.num_tokens,
        max_count=1,
        fresh=(),
    )
