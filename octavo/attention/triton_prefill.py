"""Attention of many tokens of a sequence at once: a tile of queries by each program, over K and V in paged memory.

Floor: 4 * head_dim * heads operations for each pair of a query and a key it sees; for 4,096 fresh tokens of Llama-3-8B 137 GFLOP a layer
and sequence, or 0.18 ms at 764 TFLOP/s. The rows of a tile are (token, head) pairs of the heads that share a KV head, so K and V are read
once for all of them. Running softmax: FlashAttention-2, arXiv 2307.08691.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import triton
import triton.language as tl

from octavo.attention.triton_scores import EACH, LOW, WHOLE, base2_scores, load_blocks, load_rows, load_scales, softmax_step, whole_weight


@triton.jit
def _over_keys(
    begin, end, q_tile, best, weight, acc, k_base, v_base, table_row, d, position, length, block_stride, token_stride,
    k_scales, scale_stride, kv_heads, scale, softcap, window,
    MASKED: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys begin to end (by BLOCK_N). Not MASKED: every query sees all of them."""
    for start in tl.range(begin, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        present = n < length
        block = load_blocks(table_row, n, present, BLOCK_TOKENS)
        offsets = block * block_stride + (n % BLOCK_TOKENS) * token_stride
        k = load_rows(k_base, offsets, present, d, MASKED, D, D_PAD)
        products = tl.dot(q_tile, tl.trans(k.to(q_tile.dtype)), input_precision=PRECISION)  # [M, N]
        if SCALED == EACH:
            products = products * load_scales(k_scales, block, n, present, scale_stride, kv_heads, BLOCK_TOKENS)[None, :]
        scores = base2_scores(products, scale, softcap, SOFTCAPPED)
        if MASKED:
            visible = n[None, :] <= position[:, None]
            if WINDOWED:
                visible = visible & (n[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, LOW)
        p, shrink, best, weight = softmax_step(scores, best, weight)
        if SCALED == EACH:
            p = p * load_scales(k_scales + BLOCK_TOKENS * kv_heads, block, n, present, scale_stride, kv_heads, BLOCK_TOKENS)[None, :]
        v = load_rows(v_base, offsets, present, d, MASKED, D, D_PAD)
        acc = tl.dot(p.to(q_tile.dtype), v.to(q_tile.dtype), acc * shrink[:, None], input_precision=PRECISION)
    return best, weight, acc


@triton.jit
def attend_tiles(
    q,  # [T, heads, D]
    kv,
    out,  # [T, heads, D]
    table,  # [rows, blocks] int32
    tiles,  # by list_tiles
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
    BLOCK_Q: tl.constexpr,  # tokens a tile
    M: tl.constexpr,  # SHARING * BLOCK_Q, padded
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    SOFTCAPPED: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (kv_heads, num_tiles)."""
    head = tl.program_id(0)
    kv_heads = tl.num_programs(0)
    record = tiles + (tl.num_programs(1) - 1 - tl.program_id(1)) * 8  # of a slice's tiles the last has most to do: it begins first
    count = tl.load(record)
    if count == 0:
        return
    token, row, first_position, length = tl.load(record + 1), tl.load(record + 2), tl.load(record + 3), tl.load(record + 4)

    m, d = tl.arange(0, M), tl.arange(0, D_PAD)
    inside = (m < count * SHARING)[:, None] & (d < D)[None, :]
    query = head * SHARING + m % SHARING  # [M] which head
    q_tile = tl.load(q + (token + m // SHARING).to(tl.int64)[:, None] * q_stride + query[:, None] * D + d[None, :], mask=inside, other=0.0)
    position = first_position + m // SHARING  # [M]

    table_row = table + row.to(tl.int64) * table_stride
    k_base = kv + head * head_stride
    v_base = k_base + v_offset
    k_scales = scales
    v_scale = 1.0
    if SCALED == WHOLE:
        scale = scale * tl.load(scales)
        v_scale = tl.load(scales + 1)
    elif SCALED == EACH:
        k_scales = scales + head
    best = tl.full([M], LOW, tl.float32)
    weight = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D_PAD], tl.float32)
    end = tl.minimum(first_position + count, length)
    if WINDOWED:
        begin = tl.maximum(first_position + 1 - window, 0) // BLOCK_N * BLOCK_N
    else:
        begin = tl.minimum(first_position + 1, length) // BLOCK_N * BLOCK_N
        best, weight, acc = _over_keys(
            0, begin, q_tile, best, weight, acc, k_base, v_base, table_row, d, position, length, block_stride, token_stride,
            k_scales, scale_stride, kv_heads, scale, softcap, window,
            False, D, D_PAD, BLOCK_TOKENS, BLOCK_N, WINDOWED, SOFTCAPPED, SCALED, PRECISION,
        )  # fmt: skip
    best, weight, acc = _over_keys(
        begin, end, q_tile, best, weight, acc, k_base, v_base, table_row, d, position, length, block_stride, token_stride,
        k_scales, scale_stride, kv_heads, scale, softcap, window,
        True, D, D_PAD, BLOCK_TOKENS, BLOCK_N, WINDOWED, SOFTCAPPED, SCALED, PRECISION,
    )  # fmt: skip
    out_at = out + (token + m // SHARING).to(tl.int64)[:, None] * (kv_heads * SHARING * D) + query[:, None] * D + d[None, :]
    factor = v_scale / whole_weight(best, weight, sinks, query, m < count * SHARING)
    tl.store(out_at, (acc * factor[:, None]).to(out.dtype.element_ty), mask=inside)
