"""Attention over paged memory by Triton kernels, for CUDA devices from sm_80 up. Nothing is read on the host: any step can be captured."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import torch

from octavo.attention import cudnn
from octavo.attention.backend import AttentionShape, Supports
from octavo.context import Batch
from octavo.ops.kv_format import COMPRESSED, scaling
from octavo.ops.room import power_of_2

log = logging.getLogger(__name__)

RECORD = 8  # int32 values a piece or a tile, see triton_schedule
ROWS = 16  # of the smallest tensor-core product: heads that share a KV head times tokens fill it for nothing
SMALLEST_ROOM, ROOM_STEP = 32, 8  # slices, and how much larger the next room is
WORK = 8192  # comparisons of items with slices that one scheduling program makes at a time
FEW_SLICES, LONG_SLICE = 4, 1024  # where one tuning becomes better than the other


@dataclass(frozen=True)
class PieceTuning:
    """How contexts are cut for slices of few tokens, and how one program goes through its piece."""

    programs: int = 4  # of each multiprocessor, all at work at once: their registers and shared memory fit
    shortest: int = 64  # tokens of a program, where there are as many
    block_n: int = 64  # tokens at a time
    num_warps: int = 4
    num_stages: int = 3  # one is the block table's


@dataclass(frozen=True)
class TileTuning:
    """The tiles of queries and keys for slices of many tokens."""

    block_m: int = 128  # pairs of a token and a head
    block_n: int = 128  # keys at a time
    num_warps: int = 8
    num_stages: int = 3


@dataclass(frozen=True)
class Tuning:
    pieces: PieceTuning = PieceTuning()
    tiles: TileTuning = TileTuning()


def tuning_for(head_dim: int, element_bytes: int, shared_bytes: int, num_slices: int, max_count: int, compressed: bool = False) -> Tuning:
    """By what fits into a multiprocessor's shared memory (a tile of queries, and K and V of each stage), then as measured on an H200.

    `element_bytes` are those of a product's operands. `compressed` K and V are widened on the way, which takes registers.
    """
    row_bytes = power_of_2(head_dim) * element_bytes
    if row_bytes > 512:
        return Tuning(PieceTuning(block_n=16, num_stages=5), TileTuning(block_m=32, block_n=16, num_warps=4, num_stages=2))
    if element_bytes > 2 or shared_bytes < 160 * 1024:
        return Tuning(PieceTuning(block_n=32, num_stages=5), TileTuning(block_m=64, block_n=32, num_warps=4, num_stages=2))
    if row_bytes > 256:
        return Tuning(PieceTuning(block_n=32, num_stages=5), TileTuning(block_m=128, block_n=64, num_warps=8, num_stages=2))
    # Of few slices each has many parts, which one program merges: fewer and wider ones.
    pieces = PieceTuning(programs=2, shortest=128, block_n=128) if num_slices <= FEW_SLICES else PieceTuning()
    if max_count <= LONG_SLICE:
        return Tuning(pieces, TileTuning(block_m=64, block_n=64, num_warps=4))
    return Tuning(pieces, TileTuning(block_n=64 if compressed else 128))


@dataclass(frozen=True)
class Pieces:
    """The contexts of slices of at most `few` tokens, in pieces, and where programs leave what they have of a slice."""

    records: torch.Tensor  # [num_pieces, RECORD] int32
    shares: torch.Tensor  # [programs + 1] int32
    partial: torch.Tensor  # [num_pieces, kv_heads, rows, head_dim] float32
    stats: torch.Tensor  # [num_pieces, kv_heads, 2, rows] float32
    arrivals: torch.Tensor  # [num_pieces, kv_heads] int32


@dataclass(frozen=True)
class TritonPlan:
    """The step's own buffers; the lists of work are made on the device for the first layer that needs them. Good for one pass."""

    batch: Batch
    block_table: torch.Tensor  # [max_num_seqs, max_blocks] int32
    block_tokens: int
    slots: torch.Tensor  # [T] int64, of this KV group
    pieces: dict[AttentionShape, Pieces] = field(default_factory=dict[AttentionShape, Pieces])
    tiles: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict[tuple[int, int], torch.Tensor])  # [num_tiles, RECORD] int32

    @cached_property
    def prompts(self) -> cudnn.Prompts:
        return cudnn.prompts(self.batch)

    @cached_property
    def before_fresh(self) -> TritonPlan:
        """The plan of the slices before the fresh ones."""
        batch = self.batch
        num_slices, num_tokens = batch.num_slices - len(batch.fresh), batch.num_tokens - sum(batch.fresh)
        old = replace(
            batch, starts=batch.starts[: num_slices + 1], lengths=batch.lengths[:num_slices], rows=batch.rows[:num_slices],
            num_tokens=num_tokens, num_slices=num_slices, max_count=batch.max_old_count, fresh=(),
        )  # fmt: skip
        return TritonPlan(old, self.block_table, self.block_tokens, self.slots[:num_tokens])


class TritonAttention:
    """Slices of few tokens go by pieces of their contexts (`triton_decode`), the others by tiles of their tokens (`triton_prefill`).

    Long prompts that begin in this step go to cuDNN where it is faster.
    """

    name = "triton"

    def __init__(self, tuning: Tuning | None = None, use_cudnn: bool = False) -> None:
        """`tuning` None takes what suits the device and the layer.

        cuDNN is off unless asked for: its first call for a shape took up to two seconds on an H200, which a short run never earns back.
        """
        self._tuning, self._use_cudnn = tuning, use_cudnn
        dtypes = frozenset({"bfloat16", "float16", "float32"})
        self.supports = Supports(
            devices=frozenset({"cuda"}),
            head_dims=frozenset(range(8, 257, 8)),
            dtypes=dtypes,
            kv_dtypes=dtypes | COMPRESSED,
            sinks=True,
            min_sm=80,
            kv_min_sm={"fp8_e4m3": 89},
            absent=None if find_spec("triton") else "triton is not installed",
        )

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> TritonPlan:
        return TritonPlan(batch, block_table, block_tokens, batch.slots[group])

    def run(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        assert q.stride()[1:] == (q.shape[2], 1)
        assert kv.stride(4) == plan.block_table.stride(1) == 1
        if self._use_cudnn and sinks is None and cudnn.fits(plan.batch.fresh, q, shape) and cudnn.available(q.device):
            try:
                out = cudnn.attend(plan.prompts, q, kv, scales, plan.slots, shape)
            except RuntimeError as problem:
                log.warning("prompts are attended without cuDNN from now on: %s", problem)
                self._use_cudnn = False
            else:
                old = plan.prompts.first_token
                if old:
                    self._run_paged(plan.before_fresh, q[:old], kv, scales, sinks, shape, out[:old])
                return out
        max_count, few = plan.batch.max_count, _few(shape)
        # Padding tokens follow the slices: where every slice is one token, they are pieces themselves; tiles too look after them.
        out = torch.zeros_like(q) if 1 < max_count <= few else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._run_paged(plan, q, kv, scales, sinks, shape, out)
        return out

    def _run_paged(
        self, plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, scales: torch.Tensor | None, sinks: torch.Tensor | None,
        shape: AttentionShape, out: torch.Tensor,
    ) -> None:  # fmt: skip
        """All slices of the plan by the kernels here."""
        num_sms, shared_bytes = limits_of(q.device)
        few, max_count = _few(shape), plan.batch.max_count
        element_bytes, compressed = max(q.element_size(), kv.element_size()), kv.element_size() == 1
        tuning = self._tuning or tuning_for(
            shape.head_dim, element_bytes, shared_bytes, plan.batch.num_slices, max_count, compressed
        )  # fmt: skip
        if max_count > few:
            self._run_tiles(plan, q, kv, scales, sinks, shape, out, few, tuning.tiles)
        self._run_pieces(plan, q, kv, scales, sinks, shape, out, min(few, max_count), tuning.pieces, num_sms)

    def _run_pieces(
        self,
        plan: TritonPlan,
        q: torch.Tensor,
        kv: torch.Tensor,
        scales: torch.Tensor | None,
        sinks: torch.Tensor | None,
        shape: AttentionShape,
        out: torch.Tensor,
        few: int,
        tuning: PieceTuning,
        num_sms: int,
    ) -> None:
        from octavo.attention.triton_decode import attend_pieces
        from octavo.ops.triton.dependent import launch

        pieces, listed = plan.pieces.get(shape), True
        if pieces is None:
            programs, listed = max(num_sms * tuning.programs // shape.kv_heads, 1), False
            pieces = plan.pieces[shape] = list_pieces(plan.batch, q.shape[0], shape, few, programs, tuning.block_n, tuning.shortest)
        sharing = shape.heads // shape.kv_heads
        attend_pieces[(shape.kv_heads, pieces.shares.shape[0] - 1)](
            q, kv, out, plan.block_table, pieces.records, pieces.shares, pieces.partial, pieces.stats, pieces.arrivals,
            *_layout(plan, q, kv, scales, shape), sinks,
            SHARING=sharing, TOKENS=few, ROWS=sharing * few, M=max(power_of_2(sharing * few), ROWS),
            BLOCK_N=tuning.block_n, num_warps=tuning.num_warps, num_stages=tuning.num_stages, **_constants(plan, q, scales, shape),
            **launch(q.device, early=listed),
        )  # fmt: skip

    def _run_tiles(
        self,
        plan: TritonPlan,
        q: torch.Tensor,
        kv: torch.Tensor,
        scales: torch.Tensor | None,
        sinks: torch.Tensor | None,
        shape: AttentionShape,
        out: torch.Tensor,
        few: int,
        tuning: TileTuning,
    ) -> None:
        from octavo.attention.triton_prefill import attend_tiles

        sharing = shape.heads // shape.kv_heads
        block_m = max(tuning.block_m, power_of_2(sharing))
        block_q = block_m // sharing
        tiles = plan.tiles.get((few, block_q))
        if tiles is None:
            tiles = plan.tiles[few, block_q] = list_tiles(plan.batch, q.shape[0], few, block_q)
        attend_tiles[(shape.kv_heads, tiles.shape[0])](
            q, kv, out, plan.block_table, tiles,
            *_layout(plan, q, kv, scales, shape), sinks,
            SHARING=sharing, BLOCK_Q=block_q, M=block_m,
            BLOCK_N=tuning.block_n, num_warps=tuning.num_warps, num_stages=tuning.num_stages, **_constants(plan, q, scales, shape),
        )  # fmt: skip


@cache
def limits_of(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and the shared memory of one that a program can have; for the interpreter, small numbers."""
    if device.type != "cuda":
        return 2, 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.shared_memory_per_block_optin


def list_pieces(
    batch: Batch, num_tokens: int, shape: AttentionShape, few: int, programs: int, block_n: int, shortest: int
) -> Pieces:
    """Work for all layers of this shape: at most `programs` pieces more than there are slices."""
    from octavo.attention import triton_schedule

    each = batch.max_count == 1
    num_slices = num_tokens if each else batch.num_slices
    num_pieces = num_slices + programs
    rows, device = shape.heads // shape.kv_heads * few, batch.lengths.device
    pieces = Pieces(
        torch.empty((num_pieces, RECORD), dtype=torch.int32, device=device),
        torch.empty(programs + 1, dtype=torch.int32, device=device),
        torch.empty((num_pieces, shape.kv_heads, rows, shape.head_dim), dtype=torch.float32, device=device),
        torch.empty((num_pieces, shape.kv_heads, 2, rows), dtype=torch.float32, device=device),
        torch.empty((num_pieces, shape.kv_heads), dtype=torch.int32, device=device),
    )
    slices = _room(num_slices)
    items = max(min(WORK // slices, 64), 1)
    triton_schedule.list_pieces[(-(-num_pieces // items),)](
        batch.starts, batch.lengths, batch.rows, pieces.records, pieces.shares, pieces.arrivals,
        batch.num_slices, num_tokens, num_pieces, few, programs, shortest, shape.window or 0,
        BLOCK_N=block_n, KV_HEADS=shape.kv_heads, KV_HEADS_PAD=power_of_2(shape.kv_heads),
        EACH=each, WINDOWED=shape.window is not None, SLICES=slices, ITEMS=items,
    )  # fmt: skip
    return pieces


def list_tiles(batch: Batch, num_tokens: int, few: int, block_q: int) -> torch.Tensor:
    """Work for all layers whose tiles hold `block_q` tokens: [num_tiles, RECORD] int32."""
    from octavo.attention import triton_schedule

    num_tiles = num_tokens // block_q + min(batch.num_slices, num_tokens // (few + 1)) + 1  # besides full ones, one a slice of so many
    tiles = torch.empty((num_tiles, RECORD), dtype=torch.int32, device=batch.lengths.device)
    slices = _room(batch.num_slices + 1)
    items = max(min(WORK // slices, 64), 1)
    triton_schedule.list_tiles[(-(-num_tiles // items),)](
        batch.starts, batch.lengths, batch.rows, tiles, batch.num_slices, num_tokens, num_tiles, few,
        BLOCK_Q=block_q, SLICES=slices, ITEMS=items,
    )  # fmt: skip
    return tiles


def _room(num_slices: int) -> int:
    """For so many slices the scheduling kernels are compiled: few sizes, since each is a kernel of its own."""
    room = SMALLEST_ROOM
    while room < num_slices:
        room *= ROOM_STEP
    return room


def _few(shape: AttentionShape) -> int:
    """A slice of at most so many tokens goes by pieces: its heads fit in the rows of one product."""
    return max(ROWS // (shape.heads // shape.kv_heads), 1)


def _layout(plan: TritonPlan, q: torch.Tensor, kv: torch.Tensor, scales: torch.Tensor | None, shape: AttentionShape) -> tuple[Any, ...]:
    """Strides and numbers that both kernels take."""
    return (
        q.stride(0), plan.block_table.stride(0), kv.stride(0), *kv.stride()[1:4],
        scales, 0 if scales is None else scales.stride(0), shape.scale, shape.softcap or 0.0, shape.window or 0,
    )  # fmt: skip


def _constants(plan: TritonPlan, q: torch.Tensor, scales: torch.Tensor | None, shape: AttentionShape) -> Mapping[str, int | bool | str]:
    """What both kernels are compiled for."""
    return dict(
        D=shape.head_dim,
        D_PAD=max(power_of_2(shape.head_dim), 16),
        BLOCK_TOKENS=plan.block_tokens,
        WINDOWED=shape.window is not None,
        SOFTCAPPED=shape.softcap is not None,
        SCALED=scaling(scales),
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32",
    )
