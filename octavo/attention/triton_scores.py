"""What the attention kernels share: reading K and V through the block table, capping scores, and the running softmax in base 2."""

from __future__ import annotations

import triton
import triton.language as tl

LOW = tl.constexpr(-1.0e30)  # the score of what is not seen: finite, so that a row that sees nothing stays finite


@triton.jit
def block_offsets(table_row, n, inside, block_stride, token_stride, BLOCK_TOKENS: tl.constexpr):
    """Offsets in `kv` of the tokens at positions n [N] of a sequence, int64."""
    block = tl.load(table_row + n // BLOCK_TOKENS, mask=inside, other=0)
    return block.to(tl.int64) * block_stride + (n % BLOCK_TOKENS) * token_stride


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
def base2_scores(products, scale, softcap, SOFTCAPPED: tl.constexpr):
    """scale * q k^T, capped, times log2(e)."""
    if SOFTCAPPED:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), right in both limits
        grown = tl.exp2(products * (scale / softcap * 2.8853900817779268))
        return (softcap * 1.4426950408889634) * (1.0 - 2.0 / (grown + 1.0))
    else:
        return products * (scale * 1.4426950408889634)
