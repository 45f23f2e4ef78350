"""Attention of few tokens over long contexts: all contexts in one row, cut evenly, so that all programs end together.

Floor: K and V once through memory, 2 * kv_heads * head_dim * element bytes a context token (4 KiB for 8 x 128 in bf16): 256 sequences of
650 tokens are 0.68 GB or 0.15 ms at 4.4 TB/s. The heads that share a KV head, times the slice's tokens, are the rows of one tensor-core
product, padded to 16. What of a slice's context lies in a program's share is a *piece*; where a slice has several, the last program to be
done with one merges them. Flash-decoding: Dao et al., https://pytorch.org/blog/flash-decoding/.

What does not hang on bytes is a chain of trips to memory: share, record, block table, K. A program makes the first of them before it waits
for the kernel ahead (whoever launches it sees to it that the lists of work were written long before), and asks the L2 cache for its first K
and V: of earlier tokens they have been there since earlier steps, and the kernel ahead writes no more than the newest. The pieces whose
slices go on in other programs come first, so that no merge is left for the end.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import triton
import triton.language as tl

from octavo.attention.triton_scores import EACH, LOW, WHOLE, base2_scores, load_blocks, load_rows, load_scales, softmax_step, whole_weight
from octavo.ops.triton.dependent import ask_cache, let_next, wait_for_ahead


@triton.jit
def _record(pieces, piece):
    """Parts of the piece's slice, number of this part, first token, tokens, row, begin, end, position of the first token."""
    at = pieces + piece * 8
    return (
        tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4), tl.load(at + 5), tl.load(at + 6), tl.load(at + 7)
    )  # fmt: skip


@triton.jit
def _ask_first(
    pieces, first_piece, pieces_end, table, table_stride, k_base, v_base, block_stride, token_stride,
    BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Have the cache fetch the K and V that a program begins with."""
    if first_piece < pieces_end:
        _, _, _, _, row, begin, end, _ = _record(pieces, pieces_end - 1)
        n = begin // BLOCK_N * BLOCK_N + tl.arange(0, BLOCK_N)
        block = load_blocks(table + row.to(tl.int64) * table_stride, n, n < end, BLOCK_TOKENS)
        offsets = block * block_stride + (n % BLOCK_TOKENS) * token_stride
        ask_cache(k_base, offsets, D)
        ask_cache(v_base, offsets, D)


@triton.jit
def _merged(
    partial, stats, first, parts, step, m, d, row_inside, inside, ROWS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr
):
    """Of all parts of a slice, `step` places apart: greatest scores [M], sums of weights [M] and of weighted values [M, D_PAD]."""
    best = tl.full([M], LOW, tl.float32)
    weight = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D_PAD], tl.float32)
    for other in tl.range(0, parts, loop_unroll_factor=4):
        there = first + other * step
        theirs = tl.load(partial + there * (ROWS * D) + m[:, None] * D + d[None, :], mask=inside, other=0.0, cache_modifier=".cg")
        their_best = tl.load(stats + there * (2 * ROWS) + m, mask=row_inside, other=LOW, cache_modifier=".cg")
        their_weight = tl.load(stats + there * (2 * ROWS) + ROWS + m, mask=row_inside, other=0.0, cache_modifier=".cg")
        higher = tl.maximum(best, their_best)
        shrink, their_shrink = tl.exp2(best - higher), tl.exp2(their_best - higher)
        weight = weight * shrink + their_weight * their_shrink
        acc = acc * shrink[:, None] + theirs * their_shrink[:, None]
        best = higher
    return best, weight, acc


@triton.jit
def attend_pieces(
    q,  # [T, heads, D]
    kv,
    out,  # [T, heads, D]
    table,  # [rows, blocks] int32
    pieces,  # by list_pieces
    shares,  # [programs + 1] int32: the first piece of each program
    partial,  # [num_pieces, kv_heads, ROWS, D] float32
    stats,  # [num_pieces, kv_heads, 2, ROWS] float32: greatest score and sum of weights
    arrivals,  # [num_pieces, kv_heads] int32: how many parts of the slice whose first piece this is are done; zero before and after
    q_stride,
    table_stride,
    block_stride,
    v_offset,
    token_stride,
    head_stride,
    scales,  # see octavo.ops.kv_format
    scale_stride,  # from block to block
    scale,
    softcap,
    window,
    sinks,  # [heads] float32, or None
    SHARING: tl.constexpr,  # heads per KV head
    TOKENS: tl.constexpr,  # a slice has at most this many
    ROWS: tl.constexpr,  # SHARING * TOKENS
    M: tl.constexpr,  # padded
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (kv_heads, programs)."""
    let_next(PDL)
    head, program = tl.program_id(0), tl.program_id(1)
    kv_heads = tl.num_programs(0)
    first_piece, pieces_end = tl.load(shares + program), tl.load(shares + program + 1)
    m, d = tl.arange(0, M), tl.arange(0, D_PAD)
    query = head * SHARING + m % SHARING  # [M] which head
    k_base = kv + head * head_stride
    v_base = k_base + v_offset
    if PDL:
        _ask_first(
            pieces, first_piece, pieces_end, table, table_stride, k_base, v_base, block_stride, token_stride, BLOCK_TOKENS, BLOCK_N, D
        )
    wait_for_ahead(PDL)
    k_scales = scales
    v_scale = 1.0
    if SCALED == WHOLE:
        scale = scale * tl.load(scales)
        v_scale = tl.load(scales + 1)
    elif SCALED == EACH:
        k_scales = scales + head
    for turn in range(first_piece, pieces_end):
        piece = tl.where(turn == first_piece, pieces_end - 1, turn - 1)  # the last one first
        parts, part, token, count, row, begin, end, first_position = _record(pieces, piece)
        row_inside = m < count * SHARING
        inside = row_inside[:, None] & (d < D)[None, :]
        at = (token + m // SHARING).to(tl.int64)[:, None]
        q_tile = tl.load(q + at * q_stride + query[:, None] * D + d[None, :], mask=inside, other=0.0)
        position = first_position + m // SHARING  # [M]
        table_row = table + row.to(tl.int64) * table_stride
        best = tl.full([M], LOW, tl.float32)
        weight = tl.zeros([M], tl.float32)
        acc = tl.zeros([M, D_PAD], tl.float32)
        for start in tl.range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            present = n < end
            block = load_blocks(table_row, n, present, BLOCK_TOKENS)
            offsets = block * block_stride + (n % BLOCK_TOKENS) * token_stride
            k = load_rows(k_base, offsets, present, d, True, D, D_PAD)
            products = tl.dot(q_tile, tl.trans(k.to(q_tile.dtype)), input_precision=PRECISION)  # [M, N]
            if SCALED == EACH:
                products = products * load_scales(k_scales, block, n, present, scale_stride, kv_heads, BLOCK_TOKENS)[None, :]
            scores = base2_scores(products, scale, softcap, SOFTCAPPED)
            visible = present[None, :]
            if WINDOWED:
                visible = visible & (n >= begin)[None, :]
            if TOKENS > 1:  # else the piece's borders say it all
                visible = visible & (n[None, :] <= position[:, None])
                if WINDOWED:
                    visible = visible & (n[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, LOW)
            p, shrink, best, weight = softmax_step(scores, best, weight)
            if SCALED == EACH:
                p = p * load_scales(k_scales + BLOCK_TOKENS * kv_heads, block, n, present, scale_stride, kv_heads, BLOCK_TOKENS)[None, :]
            v = load_rows(v_base, offsets, present, d, True, D, D_PAD)
            acc = tl.dot(p.to(q_tile.dtype), v.to(q_tile.dtype), acc * shrink[:, None], input_precision=PRECISION)

        out_at = out + at * (kv_heads * SHARING * D) + query[:, None] * D + d[None, :]
        if parts == 1:
            factor = v_scale / whole_weight(best, weight, sinks, query, row_inside)
            tl.store(out_at, (acc * factor[:, None]).to(out.dtype.element_ty), mask=inside)
        else:
            mine = piece * kv_heads + head
            tl.store(partial + mine * (ROWS * D) + m[:, None] * D + d[None, :], acc, mask=inside)
            tl.store(stats + mine * (2 * ROWS) + m, best, mask=row_inside)
            tl.store(stats + mine * (2 * ROWS) + ROWS + m, weight, mask=row_inside)
            tl.debug_barrier()  # the whole program has stored before its one thread reports it
            first = (piece - part) * kv_heads + head
            if tl.atomic_add(arrivals + first, 1, sem="acq_rel", scope="gpu") == parts - 1:
                best, weight, acc = _merged(partial, stats, first, parts, kv_heads, m, d, row_inside, inside, ROWS, M, D, D_PAD)
                factor = v_scale / whole_weight(best, weight, sinks, query, row_inside)
                tl.store(out_at, (acc * factor[:, None]).to(out.dtype.element_ty), mask=inside)
                tl.store(arrivals + first, 0)
