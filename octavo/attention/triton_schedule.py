"""Shares a step's attention out among programs, on the device: the host knows bounds, the kernels here read lengths.

Slices of few tokens are cut along their context into *pieces*, all others along their queries into *tiles*; each has a record. How many
records there can be follows from bounds alone; those that are not needed are empty, and a program that finds nothing to do ends. So a
captured graph adapts to the lengths of each replay, and the grid does not grow with the longest context that it was captured for.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import triton
import triton.language as tl

RECORD = 8  # int32 values: the record of a piece or of a tile
EMPTY_A_TILE = tl.constexpr(4)  # empty slices take about as long as one tile: a trip to memory each, instead of its bytes


@triton.jit
def _owner(after, item):
    """For each item [I]: the slice that owns it, and the first item of that slice. `after` [S] items belong to the slices up to each."""
    done = after[None, :] <= item[:, None]  # [I, S]
    return tl.sum(done.to(tl.int32), axis=1), tl.max(tl.where(done, after[None, :], 0), axis=1)


@triton.jit
def _reach(starts, lengths, s, num_slices, num_tokens, window, EACH: tl.constexpr, WINDOWED: tl.constexpr):
    """Of slices s: first token in the batch, tokens, context length, and the oldest position that any of the tokens sees.

    EACH: token s is slice s's only one; padding tokens beyond the slices have empty contexts. Else what follows the slices is one more.
    """
    length = tl.load(lengths + s, mask=s < num_slices, other=0)
    if EACH:
        start = s
        count = tl.where(s < num_tokens, 1, 0)
    else:
        start = tl.load(starts + s, mask=s <= num_slices, other=0)
        end = tl.load(starts + s + 1, mask=s < num_slices, other=num_tokens)
        count = tl.where(s <= num_slices, end - start, 0)
    oldest = start * 0
    if WINDOWED:
        oldest = tl.maximum(length - count + 1 - window, 0)
    return start, count, length, oldest


@triton.jit
def _tiles(starts, lengths, s, num_slices, num_tokens, few, window, BLOCK_N: tl.constexpr, EACH: tl.constexpr, WINDOWED: tl.constexpr):
    """Of slices s: whether they are cut into pieces, and then how many tiles of BLOCK_N tokens their contexts touch."""
    _, count, length, oldest = _reach(starts, lengths, s, num_slices, num_tokens, window, EACH, WINDOWED)
    taken = (count > 0) & (count <= few)
    if not EACH:
        taken = taken & (s < num_slices)
    return taken, tl.where(taken, tl.cdiv(length, BLOCK_N) - oldest // BLOCK_N, 0)


@triton.jit(do_not_specialize=["num_slices", "num_tokens", "few", "programs", "shortest", "window", "num_pieces"])
def list_pieces(
    starts,
    lengths,
    rows,
    pieces,  # [num_pieces, RECORD] int32: parts of this slice, number of this part, token, tokens, row, begin, end, position of the token
    shares,  # [programs + 1] int32: the first piece of each program; the last is the number of pieces
    arrivals,  # [num_pieces, KV_HEADS] int32, zeroed here
    num_slices,
    num_tokens,
    num_pieces,  # room for: slices and programs
    few,  # slices of more tokens are left to the tiles
    programs,
    shortest,  # tokens that a program has at least, where there are as many
    window,
    BLOCK_N: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_HEADS_PAD: tl.constexpr,
    EACH: tl.constexpr,
    WINDOWED: tl.constexpr,
    SLICES: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """All contexts in one row of tiles of BLOCK_N tokens, cut evenly among programs: a slice has a piece in each that its tiles reach into,
    and one if it has none. Every fourth of those counts as a tile, since four of them take the time of one: padding would else be left to
    the last program. Grid: num_pieces / ITEMS."""
    s = tl.arange(0, SLICES)
    taken, tiles = _tiles(starts, lengths, s, num_slices, num_tokens, few, window, BLOCK_N, EACH, WINDOWED)
    tiles = tl.where(taken & (s % EMPTY_A_TILE == 0), tl.maximum(tiles, 1), tiles)
    share = tl.maximum(tl.cdiv(tl.sum(tiles), programs), tl.cdiv(shortest, BLOCK_N))
    ends = tl.cumsum(tiles)
    begins = ends - tiles
    first = tl.minimum(begins // share, programs - 1)  # [S]: the program of its first tile
    parts = tl.where(taken, tl.maximum(tl.minimum((ends - 1) // share, programs - 1) - first + 1, 1), 0)
    after = tl.cumsum(parts)

    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    before_item = tl.minimum(tl.maximum(item[:, None] - first[None, :], 0), parts[None, :])  # [I, S]: pieces in programs before
    tl.store(shares + item, tl.sum(before_item, axis=1), mask=item <= programs)

    owner, before = _owner(after, item)
    used = item < tl.sum(parts)
    owner = tl.where(used, owner, 0)
    token, count, length, oldest = _reach(starts, lengths, owner, num_slices, num_tokens, window, EACH, WINDOWED)
    mine = (s[None, :] == owner[:, None]).to(tl.int32)  # [I, S]
    tile, own_first, own_parts = tl.sum(mine * begins, axis=1), tl.sum(mine * first, axis=1), tl.sum(mine * parts, axis=1)
    part = item - before
    skipped = (own_first + part) * share - tile  # tiles of the slice that come before this program's
    begin = tl.maximum(oldest, (oldest // BLOCK_N + skipped) * BLOCK_N)
    end = tl.minimum(length, (oldest // BLOCK_N + skipped + share) * BLOCK_N)
    record = pieces + item * 8
    inside = item < num_pieces
    tl.store(record, tl.where(used, own_parts, 0), mask=inside)
    tl.store(record + 1, part, mask=inside)
    tl.store(record + 2, token, mask=inside)
    tl.store(record + 3, count, mask=inside)
    tl.store(record + 4, tl.load(rows + owner, mask=owner < num_slices, other=0), mask=inside)
    tl.store(record + 5, begin, mask=inside)
    tl.store(record + 6, end, mask=inside)
    tl.store(record + 7, length - count, mask=inside)
    head = tl.arange(0, KV_HEADS_PAD)
    tl.store(arrivals + item[:, None] * KV_HEADS + head[None, :], 0, mask=inside[:, None] & (head < KV_HEADS)[None, :])


@triton.jit(do_not_specialize=["num_slices", "num_tokens", "num_tiles", "few"])
def list_tiles(
    starts,
    lengths,
    rows,
    tiles,  # [num_tiles, RECORD] int32: tokens in this tile (0: empty), first token in the batch, row, its position, context length
    num_slices,
    num_tokens,
    num_tiles,
    few,
    BLOCK_Q: tl.constexpr,
    SLICES: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """Slices of more than `few` tokens, and what follows the last slice (with an empty context), in tiles of BLOCK_Q tokens."""
    s = tl.arange(0, SLICES)
    _, count, _, _ = _reach(starts, lengths, s, num_slices, num_tokens, 0, False, False)
    taken = (count > few) | (s == num_slices)
    parts = tl.where(taken, tl.cdiv(count, BLOCK_Q), 0)
    after = tl.cumsum(parts)

    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    owner, before = _owner(after, item)
    used = item < tl.sum(parts)
    owner = tl.where(used, owner, 0)
    start, count, length, _ = _reach(starts, lengths, owner, num_slices, num_tokens, 0, False, False)
    skipped = (item - before) * BLOCK_Q
    record = tiles + item * 8
    inside = item < num_tiles
    tl.store(record, tl.where(used, tl.minimum(count - skipped, BLOCK_Q), 0), mask=inside)
    tl.store(record + 1, start + skipped, mask=inside)
    tl.store(record + 2, tl.load(rows + owner, mask=owner < num_slices, other=0), mask=inside)
    tl.store(record + 3, tl.maximum(length - count + skipped, 0), mask=inside)  # before the beginning where a context is empty
    tl.store(record + 4, length, mask=inside)
