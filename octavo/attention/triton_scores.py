"""What the attention kernels share: reading K and V through the block table, capping scores, and the running softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl

UNSCALED = tl.constexpr(0)  # how K and V are scaled, see octavo.ops.kv_format
WHOLE = tl.constexpr(1)  # one scale for K, one for V
EACH = tl.constexpr(2)  # one a token and head
LOW = tl.constexpr(-1.0e30)  # the score of what is not seen: finite, so that a row that sees nothing stays finite


@triton.jit
def load_blocks(table_row, n, inside, BLOCK_TOKENS: tl.constexpr):
    """The blocks [N] int64 of the tokens at positions n [N] of a sequence."""
    return tl.load(table_row + n // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)


@triton.jit
def load_scales(base, block, n, inside, stride, kv_heads, BLOCK_TOKENS: tl.constexpr):
    """The scales [N] float32 of tokens of one head, whose first one `base` points at: zeros where not inside."""
    return tl.load(base + block * stride + (n % BLOCK_TOKENS) * kv_heads, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def load_rows(base, offsets, inside, d, MASKED: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr):
    """K or V of the tokens at `offsets` [N], zeros where not inside -> [N, D_PAD] in the memory's dtype."""
    at = base + offsets[:, None] + d[None, :]
    if D < D_PAD:
        return tl.load(at, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    elif MASKED:
        return tl.load(at, mask=inside[:, None], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def softmax_step(scores, best, weight):
    """One step of the running softmax: weights p of the scores [M, N], by how much what was added up before shrinks, and the new `best` and
    `weight` [M]."""
    higher = tl.maximum(best, tl.max(scores, axis=1))
    p = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    return p, shrink, higher, weight * shrink + tl.sum(p, axis=1)


@triton.jit
def whole_weight(best, weight, sinks, head, inside):
    """What results are divided by [M]: the sum of weights, with the sink of each row's head where there are sinks."""
    if sinks is not None:
        sink = tl.load(sinks + head, mask=inside, other=0.0)
        weight = weight + tl.exp2(tl.minimum(sink * 1.4426950408889634 - best, 126.0))  # below what overflows
    return tl.where(weight > 0, weight, 1.0)


@triton.jit
def base2_scores(products, scale, softcap, SOFTCAPPED: tl.constexpr):
    """scale * q k^T, capped, times log2(e)."""
    if SOFTCAPPED:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), right in both limits
        grown = tl.exp2(products * (scale / softcap * 2.8853900817779268))
        return (softcap * 1.4426950408889634) * (1.0 - 2.0 / (grown + 1.0))
    else:
        return products * (scale * 1.4426950408889634)
