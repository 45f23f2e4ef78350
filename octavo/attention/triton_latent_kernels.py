"""Attention over latents: one vector a token is key and value of all heads, so a program reads it once for a tile of them.

A key is `RANK` numbers, which are its value too, and `ROT` behind them. Floor of a step that decodes: the larger of width * element
bytes for each context token (1,152 for 512 + 64 in bf16) through memory, and 2 * heads * (2 * RANK + ROT) operations for it: with 128
heads 278,528, 0.36 ns at 764 TFLOP/s against 0.27 ns at 4.24 TB/s; with 16 heads of a rank memory decides. Tiles of 64 heads: FlashMLA,
DeepSeek 2025.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import triton
import triton.language as tl

from octavo.attention.triton_scores import LOW, load_blocks, softmax_step
from octavo.ops.triton.dependent import follow


@triton.jit
def _load_q(q, at, inside, RANK: tl.constexpr, ROT: tl.constexpr, RANK_PAD: tl.constexpr, ROT_PAD: tl.constexpr):
    """The two parts of queries at offsets `at` [M]: [M, RANK_PAD] and [M, ROT_PAD]."""
    c, r = tl.arange(0, RANK_PAD), tl.arange(0, ROT_PAD)
    low = tl.load(q + at[:, None] + c[None, :], mask=inside[:, None] & (c < RANK)[None, :], other=0.0)
    return low, tl.load(q + at[:, None] + RANK + r[None, :], mask=inside[:, None] & (r < ROT)[None, :], other=0.0)


@triton.jit
def _over_keys(
    begin, end, q_low, q_rot, best, weight, acc, kv, table_row, position, block_stride, token_stride, scale,
    MASKED: tl.constexpr, RANK: tl.constexpr, ROT: tl.constexpr, RANK_PAD: tl.constexpr, ROT_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys begin to end (by BLOCK_N). MASKED: a query sees keys up to its position only.

    Where Triton sees that a product follows from another, it gives each warp rows of its own; with more warps than rows several then
    make the same scores. APART hides it, behind a condition that always holds and a factor between the two products: warps share the
    scores' columns.
    """
    c, r = tl.arange(0, RANK_PAD), tl.arange(0, ROT_PAD)
    n = begin + tl.arange(0, BLOCK_N)
    block = load_blocks(table_row, n, n < end, BLOCK_TOKENS)
    for start in tl.range(begin, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        present = n < end
        at = block * block_stride + (n % BLOCK_TOKENS) * token_stride
        block = load_blocks(table_row, n + BLOCK_N, n + BLOCK_N < end, BLOCK_TOKENS)  # for the next step: no load waits for another
        low = tl.load(kv + at[:, None] + c[None, :], mask=present[:, None] & (c < RANK)[None, :], other=0.0).to(q_low.dtype)
        rot = tl.load(kv + at[:, None] + RANK + r[None, :], mask=present[:, None] & (r < ROT)[None, :], other=0.0).to(q_low.dtype)
        factor = scale * 1.4426950408889634  # base 2
        if APART:
            scores = tl.zeros([q_low.shape[0], BLOCK_N], tl.float32)
            if start < end:
                scores = tl.dot(q_low, tl.trans(low), input_precision=PRECISION) * factor
                scores += tl.dot(q_rot, tl.trans(rot), input_precision=PRECISION) * factor
        else:
            scores = tl.dot(q_low, tl.trans(low), input_precision=PRECISION)
            scores = tl.dot(q_rot, tl.trans(rot), scores, input_precision=PRECISION) * factor
        visible = present[None, :]
        if MASKED:
            visible = visible & (n[None, :] <= position[:, None])
        scores = tl.where(visible, scores, LOW)
        p, shrink, best, weight = softmax_step(scores, best, weight)
        acc = tl.dot(p.to(q_low.dtype), low, acc * shrink[:, None], input_precision=PRECISION)
    return best, weight, acc


@triton.jit
def attend_latent_pieces(
    q,  # [T, heads, RANK + ROT]
    kv,
    out,  # [T, heads, RANK]
    table,  # [rows, blocks] int32
    pieces,  # by list_pieces, of slices of at most TOKENS tokens
    partial,  # [num_pieces, tiles of heads, ROWS, RANK] float32
    stats,  # [num_pieces, tiles of heads, 2, ROWS] float32: greatest score and sum of weights
    arrivals,  # [num_pieces, tiles of heads] int32: how many parts of the slice whose first piece this is are done; zero before and after
    q_stride,
    table_stride,
    block_stride,
    token_stride,
    scale,
    SHARING: tl.constexpr,  # heads a tile
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,  # SHARING * TOKENS
    M: tl.constexpr,  # padded
    RANK: tl.constexpr,
    ROT: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROT_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,  # columns merged at a time
    PRECISION: tl.constexpr,
    APART: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of heads, num_pieces)."""
    follow(PDL)
    tile, piece = tl.program_id(0), tl.program_id(1)
    num_tiles = tl.num_programs(0)
    record = pieces + piece * 8
    parts = tl.load(record)
    if parts == 0:
        return
    part, token, count, row = tl.load(record + 1), tl.load(record + 2), tl.load(record + 3), tl.load(record + 4)
    begin, end, first_position = tl.load(record + 5), tl.load(record + 6), tl.load(record + 7)

    m, c = tl.arange(0, M), tl.arange(0, RANK_PAD)
    row_inside = m < count * SHARING
    head = tile * SHARING + m % SHARING
    at = (token + m // SHARING).to(tl.int64) * q_stride + head * (RANK + ROT)
    q_low, q_rot = _load_q(q, at, row_inside, RANK, ROT, RANK_PAD, ROT_PAD)
    best, weight, acc = _over_keys(
        begin, end, q_low, q_rot, tl.full([M], LOW, tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, RANK_PAD], tl.float32),
        kv, table + row.to(tl.int64) * table_stride, first_position + m // SHARING, block_stride, token_stride, scale,
        TOKENS > 1, RANK, ROT, RANK_PAD, ROT_PAD, BLOCK_TOKENS, BLOCK_N, PRECISION, APART,
    )  # fmt: skip
    out_at = out + (token + m // SHARING).to(tl.int64) * (num_tiles * SHARING * RANK) + head * RANK
    if parts == 1:
        result = (acc / tl.where(weight > 0, weight, 1.0)[:, None]).to(out.dtype.element_ty)
        tl.store(out_at[:, None] + c[None, :], result, mask=row_inside[:, None] & (c < RANK)[None, :])
    else:
        mine = piece * num_tiles + tile
        mine_at = partial + mine.to(tl.int64) * (ROWS * RANK) + m[:, None] * RANK + c[None, :]
        tl.store(mine_at, acc, mask=row_inside[:, None] & (c < RANK)[None, :])
        tl.store(stats + mine * (2 * ROWS) + m, best, mask=row_inside)
        tl.store(stats + mine * (2 * ROWS) + ROWS + m, weight, mask=row_inside)
        tl.debug_barrier()  # the whole program has stored before its one thread reports it
        first = (piece - part) * num_tiles + tile
        if tl.atomic_add(arrivals + first, 1, sem="acq_rel", scope="gpu") == parts - 1:
            _merge(out_at, partial, stats, first, parts, num_tiles, m, row_inside, ROWS, M, RANK, BLOCK_C)
            tl.store(arrivals + first, 0)


@triton.jit
def _merge(
    out_at, partial, stats, first, parts, stride, m, row_inside,
    ROWS: tl.constexpr, M: tl.constexpr, RANK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The parts of a slice, at first, first + stride ...: first what each weighs, then a stretch of columns after the other."""
    best = tl.full([M], LOW, tl.float32)
    weight = tl.zeros([M], tl.float32)
    for other in tl.range(0, parts):
        at = stats + (first + other * stride) * (2 * ROWS) + m
        their_best = tl.load(at, mask=row_inside, other=LOW, cache_modifier=".cg")
        higher = tl.maximum(best, their_best)
        theirs = tl.load(at + ROWS, mask=row_inside, other=0.0, cache_modifier=".cg")
        weight = weight * tl.exp2(best - higher) + theirs * tl.exp2(their_best - higher)
        best = higher
    weight = tl.where(weight > 0, weight, 1.0)
    for column in tl.range(0, RANK, BLOCK_C):
        c = column + tl.arange(0, BLOCK_C)
        inside = row_inside[:, None] & (c < RANK)[None, :]
        total = tl.zeros([M, BLOCK_C], tl.float32)
        for other in tl.range(0, parts):
            place = (first + other * stride).to(tl.int64)
            shrink = tl.exp2(tl.load(stats + place * (2 * ROWS) + m, mask=row_inside, other=LOW, cache_modifier=".cg") - best)
            theirs = tl.load(partial + place * (ROWS * RANK) + m[:, None] * RANK + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
            total += theirs * shrink[:, None]
        tl.store(out_at[:, None] + c[None, :], (total / weight[:, None]).to(out_at.dtype.element_ty), mask=inside)


@triton.jit
def attend_latent_tiles(
    q,  # [T, heads, RANK + ROT]
    kv,
    out,  # [T, heads, RANK]
    table,  # [rows, blocks] int32
    tiles,  # by list_tiles
    q_stride,
    table_stride,
    block_stride,
    token_stride,
    scale,
    SHARING: tl.constexpr,
    BLOCK_Q: tl.constexpr,  # tokens a tile
    M: tl.constexpr,  # SHARING * BLOCK_Q, padded
    RANK: tl.constexpr,
    ROT: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROT_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    APART: tl.constexpr,
):
    """Grid: (tiles of heads, num_tiles)."""
    tile, num_tiles = tl.program_id(0), tl.num_programs(0)
    record = tiles + (tl.num_programs(1) - 1 - tl.program_id(1)) * 8  # of a slice's tiles the last has most to do: it begins first
    count = tl.load(record)
    if count == 0:
        return
    token, row, first_position, length = tl.load(record + 1), tl.load(record + 2), tl.load(record + 3), tl.load(record + 4)
    m, c = tl.arange(0, M), tl.arange(0, RANK_PAD)
    row_inside = m < count * SHARING
    head = tile * SHARING + m % SHARING
    at = (token + m // SHARING).to(tl.int64) * q_stride + head * (RANK + ROT)
    q_low, q_rot = _load_q(q, at, row_inside, RANK, ROT, RANK_PAD, ROT_PAD)
    _, weight, acc = _over_keys(
        0, tl.minimum(first_position + count, length), q_low, q_rot, tl.full([M], LOW, tl.float32), tl.zeros([M], tl.float32),
        tl.zeros([M, RANK_PAD], tl.float32), kv, table + row.to(tl.int64) * table_stride, first_position + m // SHARING,
        block_stride, token_stride, scale, BLOCK_Q > 1, RANK, ROT, RANK_PAD, ROT_PAD, BLOCK_TOKENS, BLOCK_N, PRECISION, APART,
    )  # fmt: skip
    out_at = out + (token + m // SHARING).to(tl.int64) * (num_tiles * SHARING * RANK) + head * RANK
    result = (acc / tl.where(weight > 0, weight, 1.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out_at[:, None] + c[None, :], result, mask=row_inside[:, None] & (c < RANK)[None, :])
