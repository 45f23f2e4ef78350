"""Sorts pairs of a token and an expert by expert and cuts each expert's into tiles of rows, on the device.

The products' grid comes from bounds that the host knows (`most_tiles`), and a tile that is not needed has no rows: so a captured step
holds any choice of experts. Pairs keep no order within their expert. That changes no result: a row of a product depends on no other row.

    records  [tiles, 4] int32: expert, the tile's first place in `order`, its rows (0: none)
    order    [pairs] int32: the pairs here, those of the first expert first; what follows the last is never read
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from octavo.ops.route import Routes
from octavo.ops.triton.dependent import follow

AT_ONCE = 4096  # pairs that one program takes; more are shared by several
CHUNK = 1024  # pairs, of each program where there are several


class Tiles(NamedTuple):
    """The work of a layer's products, each with `block_m` rows a tile at most."""

    records: torch.Tensor
    order: torch.Tensor
    block_m: int


def most_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Tiles that any choice of experts needs at most: all but one row of a tile may be empty for each expert that has any."""
    hit = min(num_experts, num_pairs)
    return min(num_pairs, (num_pairs + hit * (block_m - 1)) // block_m)


@triton.jit
def _records(counts, records, num_tiles, E: tl.constexpr, BLOCK_M: tl.constexpr, TILES: tl.constexpr):
    """Write all records for experts with so many pairs [E]; gives where the pairs of each begin."""
    parts = tl.cdiv(counts, BLOCK_M)
    after = tl.cumsum(parts)
    starts = tl.cumsum(counts) - counts
    total = tl.sum(parts)
    expert = tl.arange(0, E)
    for first in range(0, num_tiles, TILES):
        tile = first + tl.arange(0, TILES)
        owner = tl.sum((after[None, :] <= tile[:, None]).to(tl.int32), axis=1)
        mine = expert[None, :] == owner[:, None]
        skipped = (tile - tl.sum(tl.where(mine, (after - parts)[None, :], 0), axis=1)) * BLOCK_M
        begin = tl.sum(tl.where(mine, starts[None, :], 0), axis=1) + skipped
        rows = tl.minimum(tl.sum(tl.where(mine, counts[None, :], 0), axis=1) - skipped, BLOCK_M)
        inside = tile < num_tiles
        tl.store(records + tile * 4, owner, mask=inside)
        tl.store(records + tile * 4 + 1, begin, mask=inside)
        tl.store(records + tile * 4 + 2, tl.where(tile < total, rows, 0), mask=inside)
    return starts


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _all_at_once(
    chosen, records, order, cursors, num_pairs, num_experts, num_tiles,
    PAIRS: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    pair = tl.arange(0, PAIRS)
    expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1)
    here = (expert >= 0) & (expert < num_experts)
    counts = tl.histogram(tl.where(here, expert, 0), E, mask=here)
    starts = _records(counts, records, num_tiles, E, BLOCK_M, TILES)
    tl.store(cursors + tl.arange(0, E), starts)
    tl.debug_barrier()  # the cursors stand before one of them moves
    place = tl.atomic_add(cursors + tl.where(here, expert, 0), 1, mask=here, sem="relaxed", scope="cta")
    tl.store(order + place, pair, mask=here)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _count(
    chosen, records, cursors, counters, num_pairs, num_experts, num_tiles,
    CHUNK: tl.constexpr, E: tl.constexpr, BLOCK_M: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Count each expert's pairs in `counters` [E + 1]; the last program writes records and cursors, and puts the counters back to 0."""
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1)
    here = (expert >= 0) & (expert < num_experts)
    e = tl.arange(0, E)
    tl.atomic_add(counters + e, tl.histogram(tl.where(here, expert, 0), E, mask=here), sem="relaxed", scope="gpu")
    tl.debug_barrier()  # every thread has counted before one of them counts the program
    if tl.atomic_add(counters + E, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        counts = tl.load(counters + e, cache_modifier=".cg")
        tl.store(cursors + e, _records(counts, records, num_tiles, E, BLOCK_M, TILES))
        tl.store(counters + e, 0)
        tl.store(counters + E, 0)


@triton.jit(do_not_specialize=["num_pairs"])
def _place(chosen, order, cursors, num_pairs, num_experts, CHUNK: tl.constexpr):
    pair = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1)
    here = (expert >= 0) & (expert < num_experts)
    place = tl.atomic_add(cursors + tl.where(here, expert, 0), 1, mask=here, sem="relaxed", scope="gpu")
    tl.store(order + place, pair, mask=here)


def share_out(routes: Routes, block_m: int, counters: torch.Tensor, dependent: bool) -> Tiles:
    """`counters` [more than the experts] int32 zeros, left as zeros; all calls with the same ones must run on one stream."""
    num_pairs, num_experts, chosen = routes.num_pairs, routes.num_experts, routes.chosen
    assert chosen.is_contiguous()
    e = triton.next_power_of_2(num_experts)
    num_tiles = most_tiles(num_pairs, num_experts, block_m)
    room = torch.empty(4 * num_tiles + num_pairs + e, dtype=torch.int32, device=chosen.device)
    records, order, cursors = room.split([4 * num_tiles, num_pairs, e])
    fixed = {"E": e, "BLOCK_M": block_m, "TILES": min(64, triton.next_power_of_2(num_tiles))}
    if num_pairs <= AT_ONCE:
        launch = {"launch_pdl": True} if dependent else {}
        pairs = max(32, triton.next_power_of_2(num_pairs))
        _all_at_once[(1,)](
            chosen, records, order, cursors, num_pairs, num_experts, num_tiles, PAIRS=pairs, PDL=dependent,
            num_warps=4 if pairs <= 512 else 8, **fixed, **launch,
        )  # fmt: skip
    else:
        assert counters.numel() > e
        programs = triton.cdiv(num_pairs, CHUNK)
        _count[(programs,)](chosen, records, cursors, counters, num_pairs, num_experts, num_tiles, CHUNK=CHUNK, **fixed)
        _place[(programs,)](chosen, order, cursors, num_pairs, num_experts, CHUNK=CHUNK)
    return Tiles(records, order, block_m)
