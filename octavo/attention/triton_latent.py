"""Attention over latents by Triton kernels, for CUDA devices from sm_80 up. Nothing is read on the host: any step can be captured."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

from octavo.attention.backend import AttentionShape, Supports
from octavo.attention.triton import ROWS, TritonPlan, limits_of, list_pieces, list_tiles
from octavo.context import Batch
from octavo.ops.room import power_of_2


@dataclass(frozen=True)
class LatentTuning:
    heads: int = 64  # a tile, at most
    programs: int = 1  # wanted for each multiprocessor
    shortest: int = 128  # tokens in a piece, where there are as many
    block_n: int = 32  # tokens at a time
    num_warps: int = 8
    num_stages: int = 3  # of which the last two are loads on their way
    apart: bool = True  # warps share the columns of scores


def tuning_for(heads: int, element_bytes: int, shared_bytes: int) -> LatentTuning:
    """By what fits into a multiprocessor's shared memory: the queries of a tile, and the vectors of each stage."""
    if element_bytes > 2:
        return LatentTuning(heads=16, programs=2, block_n=16, num_warps=4, num_stages=1)
    if shared_bytes < 216 * 1024:
        return LatentTuning(heads=16, programs=2, block_n=16, num_warps=4, num_stages=2)
    if heads <= 16:  # memory decides: more programs
        return LatentTuning(heads=16, programs=3, block_n=32, num_warps=4, num_stages=2)
    return LatentTuning()


class TritonLatent:
    """Slices of one token go by pieces of their contexts, the others by tiles of their tokens; each program has a tile of heads."""

    name = "triton_mla"

    def __init__(self, tuning: LatentTuning | None = None) -> None:
        """`tuning` None takes what suits device and layer."""
        self._tuning = tuning
        dtypes = frozenset({"bfloat16", "float16", "float32"})
        self.supports = Supports(
            devices=frozenset({"cuda"}), kinds=frozenset({"latent"}), dtypes=dtypes, kv_dtypes=dtypes, softcap=False, min_sm=80,
            absent=None if find_spec("triton") else "triton is not installed",
        )  # fmt: skip

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> TritonPlan:
        return TritonPlan(batch, block_table, block_tokens, batch.slots[group])

    def run(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        rank = shape.value_dim
        assert rank is not None
        assert scales is None, "not a format that this backend supports"
        assert q.stride()[1:] == (q.shape[2], 1)
        assert kv.stride(4) == plan.block_table.stride(1) == 1
        num_sms, shared_bytes = limits_of(q.device)
        tuning = self._tuning or tuning_for(shape.heads, max(q.element_size(), kv.element_size()), shared_bytes)
        sharing = max(size for size in range(1, min(tuning.heads, shape.heads) + 1) if shape.heads % size == 0)
        few, batch = max(ROWS // shape.heads, 1), plan.batch
        tiled = replace(shape, kv_heads=shape.heads // sharing, head_dim=rank)  # as if each tile of heads had keys of its own
        # Padding tokens follow the slices: where every slice is one token, they are pieces themselves; tiles too look after them.
        out = q.new_zeros if 1 < batch.max_count <= few else q.new_empty
        out = out((*q.shape[:2], rank))
        if batch.max_count > few:
            self._run_tiles(plan, q, kv, tiled, out, few, tuning)
        self._run_pieces(plan, q, kv, tiled, out, min(few, batch.max_count), tuning, num_sms)
        return out

    def _run_pieces(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, out: torch.Tensor, few: int,
        tuning: LatentTuning, num_sms: int,
    ) -> None:  # fmt: skip
        from octavo.attention.triton_latent_kernels import attend_latent_pieces
        from octavo.ops.triton.dependent import launch

        pieces, sharing = plan.pieces.get(shape), shape.heads // shape.kv_heads
        if pieces is None:
            shares = max(num_sms * tuning.programs // shape.kv_heads, 1)
            pieces = plan.pieces[shape] = list_pieces(plan.batch, q.shape[0], shape, few, shares, tuning.block_n, tuning.shortest)
        attend_latent_pieces[(shape.kv_heads, pieces.records.shape[0])](
            q, kv, out, plan.block_table, pieces.records, pieces.partial, pieces.stats, pieces.arrivals,
            q.stride(0), plan.block_table.stride(0), kv.stride(0), kv.stride(2), shape.scale,
            SHARING=sharing, TOKENS=few, ROWS=sharing * few, M=max(power_of_2(sharing * few), ROWS), BLOCK_C=64,
            **_constants(plan, q, shape, tuning), **launch(q.device),
        )  # fmt: skip

    def _run_tiles(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, out: torch.Tensor, few: int,
        tuning: LatentTuning,
    ) -> None:  # fmt: skip
        from octavo.attention.triton_latent_kernels import attend_latent_tiles

        sharing = shape.heads // shape.kv_heads
        block_q = max(tuning.heads // sharing, 1)
        tiles = plan.tiles.get((few, block_q))
        if tiles is None:
            tiles = plan.tiles[few, block_q] = list_tiles(plan.batch, q.shape[0], few, block_q)
        attend_latent_tiles[(shape.kv_heads, tiles.shape[0])](
            q, kv, out, plan.block_table, tiles, q.stride(0), plan.block_table.stride(0), kv.stride(0), kv.stride(2), shape.scale,
            SHARING=sharing, BLOCK_Q=block_q, M=max(power_of_2(sharing * block_q), ROWS), **_constants(plan, q, shape, tuning),
        )  # fmt: skip


def _constants(plan: TritonPlan, q: torch.Tensor, shape: AttentionShape, tuning: LatentTuning) -> dict[str, int | str]:
    """What both kernels are compiled for."""
    rank, rotated = shape.head_dim, q.shape[2] - shape.head_dim
    return dict(
        RANK=rank, ROT=rotated, RANK_PAD=max(power_of_2(rank), 16), ROT_PAD=max(power_of_2(rotated), 16), BLOCK_TOKENS=plan.block_tokens,
        BLOCK_N=tuning.block_n, APART=tuning.apart, PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
        num_warps=tuning.num_warps, num_stages=tuning.num_stages,
    )  # fmt: skip
