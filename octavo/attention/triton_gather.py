"""Copies K and V of a batch's tokens out of the paged memory. Moves 2 * (memory's + result's) bytes a token: 16,384 tokens of Llama-3-8B
in bf16 are 134 MB, 32 us at the copy rate."""

# pyright: reportArgumentType=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.attention.triton_scores import EACH, WHOLE
from octavo.ops.kv_format import scaling


@triton.jit
def _gather(
    kv, out, slots, scales, first, block_stride, v_offset, token_stride, scale_stride, room,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens, 2), the second for K and V."""
    token, half = first + tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    block, offset = slot // BLOCK_TOKENS, slot % BLOCK_TOKENS
    at = tl.arange(0, BLOCK)
    inside = at < KV_HEADS * D
    value = tl.load(kv + block * block_stride + half * v_offset + offset * token_stride + at, mask=inside, other=0.0)
    if SCALED == WHOLE:
        value = value.to(tl.float32) * tl.load(scales + half)
    elif SCALED == EACH:
        own = scales + block * scale_stride + (half * BLOCK_TOKENS + offset) * KV_HEADS
        value = value.to(tl.float32) * tl.load(own + at // D, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + (half * room + token) * (KV_HEADS * D) + at, value.to(out.dtype.element_ty), mask=inside)


def gather(
    kv: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor, first: int, end: int, room: int, dtype: torch.dtype
) -> torch.Tensor:
    """K and V of the tokens first to end: kv [num_blocks, 2, block_tokens, kv_heads, head_dim] with its scales, slots [T] int64, none of
    them -1 -> [2, room, kv_heads, head_dim], in which other tokens are not written."""
    kv_heads, head_dim = kv.shape[3:]
    assert kv.stride()[2:] == (kv_heads * head_dim, head_dim, 1)
    out = torch.empty((2, room, kv_heads, head_dim), dtype=dtype, device=kv.device)
    _gather[(end - first, 2)](
        kv, out, slots, scales, first, *kv.stride()[:3], 0 if scales is None else scales.stride(0), room, KV_HEADS=kv_heads, D=head_dim,
        BLOCK_TOKENS=kv.shape[2], BLOCK=triton.next_power_of_2(kv_heads * head_dim), SCALED=scaling(scales), num_warps=4,
    )  # fmt: skip
    return out
