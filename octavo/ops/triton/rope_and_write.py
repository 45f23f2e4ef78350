"""Norms of q and k, rotation, and the write of K and V to the paged memory, in one launch over (token, heads).

Each value of qkv is read once (twice where rotated, the second time from cache) and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.norm import rms_norm

_HEADS_AT_ONCE = 8


@triton.jit
def _normed_rotated(x, head, heads_mask, weight, cos_sin, eps, D, ROTATED, NORM: tl.constexpr, ROPE: tl.constexpr, BLOCK_D: tl.constexpr):
    """x points at a token's first head: the heads `head` [HB] of it, normed and rotated, [HB, BLOCK_D] float32."""
    at = tl.arange(0, BLOCK_D)
    inside = heads_mask[:, None] & (at < D)[None, :]
    value = tl.load(x + head[:, None] * D + at[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        norm = tl.rsqrt(tl.sum(value * value, axis=1) / D + eps)  # [HB]
        value = value * norm[:, None] * tl.load(weight + at, mask=at < D, other=0.0)[None, :]
    if ROPE:
        half = ROTATED // 2
        partner_at = tl.where(at < half, at + half, tl.where(at < ROTATED, at - half, at))
        partner = tl.load(x + head[:, None] * D + partner_at[None, :], mask=inside, other=0.0).to(tl.float32)
        if NORM:
            partner = partner * norm[:, None] * tl.load(weight + partner_at, mask=at < D, other=0.0)[None, :]
        pair = tl.where(at < half, at, at - half)
        turns = at < ROTATED
        cos = tl.load(cos_sin + pair, mask=turns, other=1.0)
        sin = tl.load(cos_sin + half + pair, mask=turns, other=0.0)
        value = value * cos[None, :] + partner * tl.where(at < half, -sin, sin)[None, :]
    return value


@triton.jit
def _rope_and_write(
    qkv, q_out, kv, positions, slots, cos_sin, q_norm, k_norm, eps, heads, kv_heads, D, ROTATED, block_tokens, qkv_stride, block_stride,
    NORM: tl.constexpr, ROPE: tl.constexpr, HB: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts = tl.cdiv(heads, HB)
    kv_parts = tl.cdiv(kv_heads, HB)
    at = tl.arange(0, BLOCK_D)
    row = qkv + token * qkv_stride
    table = cos_sin
    if ROPE:
        table = cos_sin + tl.load(positions + token) * ROTATED
    if part < q_parts:
        head = part * HB + tl.arange(0, HB)
        mask = head < heads
        q = _normed_rotated(row, head, mask, q_norm, table, eps, D, ROTATED, NORM, ROPE, BLOCK_D)
        out = q_out + token * heads * D + head[:, None] * D + at[None, :]
        tl.store(out, q.to(q_out.dtype.element_ty), mask=mask[:, None] & (at < D)[None, :])
        return
    slot = tl.load(slots + token)
    if slot < 0:
        return
    is_v = part >= q_parts + kv_parts
    head = (part - q_parts - tl.where(is_v, kv_parts, 0)) * HB + tl.arange(0, HB)
    mask = head < kv_heads
    where = kv + (slot // block_tokens) * block_stride + (slot % block_tokens) * kv_heads * D
    target = where + head[:, None] * D + at[None, :]
    inside = mask[:, None] & (at < D)[None, :]
    if is_v:
        v = tl.load(row + (heads + kv_heads) * D + head[:, None] * D + at[None, :], mask=inside, other=0.0)
        tl.store(target + block_tokens * kv_heads * D, v.to(kv.dtype.element_ty), mask=inside)
    else:
        k = _normed_rotated(row + heads * D, head, mask, k_norm, table, eps, D, ROTATED, NORM, ROPE, BLOCK_D)
        tl.store(target, k.to(kv.dtype.element_ty), mask=inside)


def rope_and_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    num_tokens, (_, _, block_tokens, kv_heads, head_dim) = qkv.shape[0], kv.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    if q_norm is not None and k_norm is not None and q_norm.shape[0] != head_dim:  # over all heads together: a pass of its own
        q, k, v = qkv.split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=1)
        qkv = torch.cat((rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps), v), dim=1)
        q_norm = k_norm = None
    q_out = torch.empty((num_tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if num_tokens:
        parts = triton.cdiv(heads, _HEADS_AT_ONCE) + 2 * triton.cdiv(kv_heads, _HEADS_AT_ONCE)
        _rope_and_write[(num_tokens, parts)](
            qkv, q_out, kv, positions, slots, cos_sin, q_norm, k_norm, eps, heads, kv_heads, head_dim,
            0 if cos_sin is None else cos_sin.shape[1], block_tokens, qkv.stride(0), kv.stride(0),
            NORM=q_norm is not None, ROPE=cos_sin is not None, HB=_HEADS_AT_ONCE, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=4,
        )  # fmt: skip
    return q_out
