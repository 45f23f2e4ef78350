"""The set of operations that a model runs with: chosen once for a device and a level, then bound to its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, dtype

from octavo import env
from octavo.config.experts import Choice
from octavo.ops.best import best
from octavo.ops.decode_batch import decode_batch
from octavo.ops.draw import Settings, draw, draw_rows
from octavo.ops.embedding import embedding
from octavo.ops.expand_blocks import expand_blocks
from octavo.ops.grouped_linear import ByExpert, GroupedLinearOp, GroupedSumOp, grouped_linear, grouped_sum, pack_grouped, share_out
from octavo.ops.invariant import in_tiles
from octavo.ops.latent_rope_and_write import latent_rope_and_write
from octavo.ops.linear import REFERENCE_GATES, LinearOp, around, linear, pack_linear, product
from octavo.ops.mxfp4 import Mxfp4, mxfp4_linear, mxfp4_sum
from octavo.ops.native.binding import shared_native
from octavo.ops.native.record import Pool, record
from octavo.ops.native.twins import Twins
from octavo.ops.note_step import note_step
from octavo.ops.packed_linear import Packed, pack_blocks, packed_linear, packed_rows
from octavo.ops.rms_norm import add_rms_norm, rms_norm
from octavo.ops.rope_and_write import rope_and_write
from octavo.ops.route import Routes, route

RopeAndWrite = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, float, Tensor | None], Tensor
]
LatentRopeAndWrite = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], None]
NoteStep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], None]
PackedRows = Callable[[Packed, Tensor, int, dtype], Tensor]
PackBlocks = Callable[[Tensor, str], Packed]
ExpandBlocks = Callable[[Tensor, str, Tensor], None]
Route = Callable[[Tensor, Tensor | None, Choice, Tensor | None], tuple[Tensor, Tensor]]
Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], Tensor]


@dataclass(frozen=True)
class Ops:
    """One callable an operation, each described by its torch reference, which is the default here."""

    embedding: Callable[[Tensor, Tensor, int], Tensor] = embedding
    linear: LinearOp[Tensor] = linear
    pack_linear: Callable[[Tensor], Tensor] = pack_linear
    packed_linear: LinearOp[Packed] = packed_linear
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]] = add_rms_norm
    rope_and_write: RopeAndWrite = rope_and_write
    latent_rope_and_write: LatentRopeAndWrite = latent_rope_and_write
    route: Route = route
    share_out: Callable[[Routes], Routes] = share_out
    grouped_linear: GroupedLinearOp[Tensor] = grouped_linear
    grouped_sum: GroupedSumOp[Tensor] = grouped_sum
    mxfp4_linear: GroupedLinearOp[Mxfp4] = mxfp4_linear
    mxfp4_sum: GroupedSumOp[Mxfp4] = mxfp4_sum
    pack_grouped: Callable[[Tensor], Tensor] = pack_grouped
    draw: Draw = draw
    draw_rows: Callable[[Tensor, Tensor, Tensor, Tensor, Settings], tuple[Tensor, Tensor]] = draw_rows
    best: Callable[[Tensor], tuple[Tensor, Tensor]] = best
    decode_batch: Callable[..., None] = decode_batch
    note_step: NoteStep = note_step
    packed_rows: PackedRows = packed_rows
    pack_blocks: PackBlocks = pack_blocks
    expand_blocks: ExpandBlocks = expand_blocks
    record: Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]] | None = None  # a step as a tape (octavo/ops/native/record.py)
    compile_ahead: Callable[[], Callable[[], None]] = lambda: lambda: None  # begins what must be compiled; what it gives waits for it


REFERENCES = Ops()


def choose_ops(device: str, level: int, invariant: bool = False) -> Ops:
    """The operations for a device ("cpu", "cuda") at an optimisation level: 0 takes the references. `invariant`: those whose rows do not
    depend on one another."""
    if device == "cpu" and level >= 1 and (native := shared_native()):
        twins = Twins(native)
        by_expert = ByExpert[Tensor](twins.linear, twins.grouped_width)
        return Ops(
            embedding=twins.embedding,
            linear=around(in_tiles(twins.product) if invariant else twins.product, twins.rms_norm, twins.gates),
            pack_linear=twins.pack_linear,
            packed_linear=twins.packed_linear,
            rms_norm=twins.rms_norm,
            add_rms_norm=twins.add_rms_norm,
            rope_and_write=twins.rope_and_write,
            grouped_linear=by_expert.linear,
            grouped_sum=by_expert.sum,
            pack_grouped=twins.pack_grouped,
            draw=twins.draw,
            draw_rows=twins.draw_rows,
            best=twins.best,
            decode_batch=twins.decode_batch,
            note_step=twins.note_step,
            packed_rows=twins.packed_rows,
            pack_blocks=twins.pack_blocks,
            expand_blocks=twins.expand_blocks,
            record=partial(record, native, Pool()),
        )
    if device == "cuda" and level >= 1:
        return triton_ops(invariant, tune=level == 3)
    return replace(REFERENCES, linear=around(in_tiles(product), rms_norm, REFERENCE_GATES)) if invariant else REFERENCES


def triton_ops(invariant: bool = False, tune: bool = False) -> Ops:
    """The Triton twins; `tune`: try products of shapes that no table has. Triton is imported only here."""
    from octavo.ops.triton.cache import use_cache_folder

    folder = use_cache_folder(env.cache_root())
    from octavo.ops.triton import precompile
    from octavo.ops.triton.best import best
    from octavo.ops.triton.decode_batch import decode_batch
    from octavo.ops.triton.draw import draw, draw_rows
    from octavo.ops.triton.embedding import embedding
    from octavo.ops.triton.fixed import fixed_product
    from octavo.ops.triton.grouped import TritonGrouped
    from octavo.ops.triton.grouped_mxfp4 import TritonMxfp4
    from octavo.ops.triton.linear import GATES, TritonLinear
    from octavo.ops.triton.norm import add_rms_norm, rms_norm
    from octavo.ops.triton.note_step import note_step
    from octavo.ops.triton.rope_and_write import rope_and_write
    from octavo.ops.triton.route import route

    grouped = TritonGrouped.here()
    mxfp4 = TritonMxfp4(grouped)
    return Ops(
        embedding=embedding,
        linear=around(fixed_product, rms_norm, GATES) if invariant else TritonLinear.here(tune),
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        rope_and_write=rope_and_write,
        route=partial(route, dependent=grouped.dependent),
        share_out=grouped.share_out,
        grouped_linear=grouped.linear,
        grouped_sum=grouped.sum,
        mxfp4_linear=mxfp4.linear,
        mxfp4_sum=mxfp4.sum,
        best=best,
        draw=draw,
        draw_rows=draw_rows,
        decode_batch=decode_batch,
        note_step=note_step,
        compile_ahead=partial(precompile.start_here, folder),
    )
