"""Attention over paged memory by the C kernel: one pass over K and V, for decode and prefill alike, on CPU."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from octavo.attention.backend import AttentionShape, Supports
from octavo.context import Batch
from octavo.ops.kv_format import COMPRESSED
from octavo.ops.native.binding import DTYPES, KV_DTYPES, Native, Op, scale_places, shared_native

_ATTENTION = struct.Struct("8P16qP5q2d")
_NAMES = frozenset(str(dtype).removeprefix("torch.") for dtype in DTYPES)


@dataclass(frozen=True)
class NativePlan:
    """The batch's own buffers: the kernel reads them when it runs, so a plan is never stale."""

    batch: Batch
    block_table: torch.Tensor  # [max_num_seqs, max_blocks] int32


class NativeAttention:
    """Reads counts, lengths and block tables in the kernel; pieces are shared out as threads come free."""

    name = "cpu"
    whole = False  # whether each context stays in one piece, however few there are

    def __init__(self, native: Native | None = None) -> None:
        """`native` None takes the process's own, which there may not be: `supports` then says so."""
        self.native = native or shared_native()
        absent = None if self.native else "there are no C kernels on this machine"
        self.supports = Supports(
            devices=frozenset({"cpu"}), kinds=frozenset({"paged", "window", "latent"}), dtypes=_NAMES, kv_dtypes=_NAMES | COMPRESSED,
            sinks=True, absent=absent,
        )  # fmt: skip

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> NativePlan:
        return NativePlan(batch, block_table)

    def run(
        self, plan: NativePlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        batch, table, out = plan.batch, plan.block_table, torch.empty(q.shape, dtype=q.dtype)
        assert q.stride()[1:] == (q.shape[2], 1)
        assert kv.stride(4) == table.stride(1) == 1
        args = _ATTENTION.pack(
            q.data_ptr(), kv.data_ptr(), out.data_ptr(),
            table.data_ptr(), batch.starts.data_ptr(), batch.lengths.data_ptr(), batch.rows.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            batch.rows.shape[0], q.shape[0], shape.heads, shape.kv_heads, shape.head_dim, kv.shape[2],
            q.stride(0), table.stride(0), *kv.expand(-1, 2, -1, -1, -1).stride()[:4], DTYPES[q.dtype], KV_DTYPES[kv.dtype],
            shape.window or 0, self.whole, *scale_places(scales, kv),
            shape.scale, shape.softcap or 0.0,
        )  # fmt: skip
        assert self.native is not None
        self.native.run(Op.ATTENTION, args)
        return out if shape.value_dim is None else out[..., : shape.value_dim]
