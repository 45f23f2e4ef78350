"""Norms of q and k, rotation, and the write of K and V to the paged memory, in one launch over (token, heads).

Each value of qkv is read once (twice where rotated, the second time from cache) and written once. The memory of q reaches to `token_room`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.kv_format import LARGEST, scaling
from octavo.ops.room import token_room
from octavo.ops.triton.dependent import follow, launch
from octavo.ops.triton.norm import rms_norm

_HEADS_AT_ONCE = 8


@triton.jit
def _normed_rotated(x, head, mask, weight, cos_sin, eps, D: tl.constexpr, ROTATED: tl.constexpr, NORM: tl.constexpr, HALF: tl.constexpr):
    """x points at a token's first head: of its heads `head` [HB], normed and rotated, the parts [0, D / 2) and [D / 2, D), each [HB, HALF].

    The two values of a rotary pair lie D / 2 apart where the whole head turns, so each half is one run of memory.
    """
    at = tl.arange(0, HALF)
    inside = mask[:, None] & (at < D // 2)[None, :]
    place = x + head[:, None] * D + at[None, :]
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + D // 2, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        norm = tl.rsqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / D + eps)  # [HB]
        first = first * norm[:, None] * tl.load(weight + at, mask=at < D // 2, other=0.0)[None, :]
        second = second * norm[:, None] * tl.load(weight + D // 2 + at, mask=at < D // 2, other=0.0)[None, :]
    if ROTATED == D:
        cos = tl.load(cos_sin + at, mask=at < D // 2, other=1.0)[None, :]
        sin = tl.load(cos_sin + D // 2 + at, mask=at < D // 2, other=0.0)[None, :]
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    elif ROTATED > 0:  # pairs lie inside the first ROTATED values: their partners are loaded once more
        first = _partly_rotated(x, head, mask, weight, cos_sin, norm if NORM else 1.0, first, at, D, ROTATED, NORM)
        second = _partly_rotated(x, head, mask, weight, cos_sin, norm if NORM else 1.0, second, at + D // 2, D, ROTATED, NORM)
    return first, second


@triton.jit
def _partly_rotated(x, head, mask, weight, cos_sin, norm, value, at, D: tl.constexpr, ROTATED: tl.constexpr, NORM: tl.constexpr):
    """`value` [HB, HALF] at the columns `at`, of which those below ROTATED turn."""
    half: tl.constexpr = ROTATED // 2
    turns = at < ROTATED
    partner_at = tl.where(at < half, at + half, at - half)
    partner = tl.load(x + head[:, None] * D + partner_at[None, :], mask=mask[:, None] & turns[None, :], other=0.0).to(tl.float32)
    if NORM:
        partner = partner * norm[:, None] * tl.load(weight + partner_at, mask=turns, other=0.0)[None, :]
    pair = tl.where(at < half, at, at - half)
    cos = tl.load(cos_sin + pair, mask=turns, other=1.0)[None, :]
    sin = tl.load(cos_sin + half + pair, mask=turns, other=0.0)[None, :]
    return value * cos + partner * tl.where(at < half, -1.0, 1.0)[None, :] * sin


@triton.jit
def _compressed(first, second, inside, whole, own, mask, SCALED: tl.constexpr, LIMIT: tl.constexpr):
    """What is stored of both halves [HB, HALF] of heads: by the scale at `whole` (fp8), or by new ones, which go to `own` [HB] (int8)."""
    if SCALED == 1:
        scale = tl.load(whole)
        first, second = first / scale, second / scale
    else:
        largest = tl.max(tl.where(inside, tl.maximum(tl.abs(first), tl.abs(second)), 0.0), axis=1)
        new = (largest / LIMIT).to(own.dtype.element_ty)  # [HB], rounded before it is divided by
        tl.store(own, new, mask=mask)
        scale = tl.where(new > 0, new.to(tl.float32), 1.0)[:, None]
        first, second = tl.floor(first / scale + 0.5), tl.floor(second / scale + 0.5)
    return tl.clamp(first, -LIMIT, LIMIT), tl.clamp(second, -LIMIT, LIMIT)


@triton.jit
def _rope_and_write(
    qkv, q_out, kv, scales, positions, slots, cos_sin, q_norm, k_norm, eps, heads, kv_heads, qkv_stride, block_stride, scale_stride,
    block_tokens: tl.constexpr, D: tl.constexpr, ROTATED: tl.constexpr, NORM: tl.constexpr, HB: tl.constexpr, HALF: tl.constexpr,
    SCALED: tl.constexpr, LIMIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts = tl.cdiv(heads, HB)
    kv_parts = tl.cdiv(kv_heads, HB)
    at = tl.arange(0, HALF)
    row = qkv + token * qkv_stride
    table = cos_sin
    if ROTATED > 0:
        table = cos_sin + tl.load(positions + token) * ROTATED
    if part < q_parts:
        head = part * HB + tl.arange(0, HB)
        mask = head < heads
        inside = mask[:, None] & (at < D // 2)[None, :]
        first, second = _normed_rotated(row, head, mask, q_norm, table, eps, D, ROTATED, NORM, HALF)
        out = q_out + token * heads * D + head[:, None] * D + at[None, :]
        tl.store(out, first.to(q_out.dtype.element_ty), mask=inside)
        tl.store(out + D // 2, second.to(q_out.dtype.element_ty), mask=inside)
        return
    slot = tl.load(slots + token)
    if slot < 0:
        return
    is_v = part >= q_parts + kv_parts
    head = (part - q_parts - tl.where(is_v, kv_parts, 0)) * HB + tl.arange(0, HB)
    mask = head < kv_heads
    inside = mask[:, None] & (at < D // 2)[None, :]
    target = kv + (slot // block_tokens) * block_stride + (slot % block_tokens) * kv_heads * D + head[:, None] * D + at[None, :]
    if is_v:
        source = row + (heads + kv_heads) * D + head[:, None] * D + at[None, :]
        target += block_tokens * kv_heads * D
        first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + D // 2, mask=inside, other=0.0).to(tl.float32)
    else:
        first, second = _normed_rotated(row + heads * D, head, mask, k_norm, table, eps, D, ROTATED, NORM, HALF)
    if SCALED > 0:
        own = scales + (slot // block_tokens) * scale_stride + (slot % block_tokens + tl.where(is_v, block_tokens, 0)) * kv_heads + head
        first, second = first.to(qkv.dtype.element_ty).to(tl.float32), second.to(qkv.dtype.element_ty).to(tl.float32)  # as they are without
        first, second = _compressed(first, second, inside, scales + is_v.to(tl.int32), own, mask, SCALED, LIMIT)
    tl.store(target, first.to(kv.dtype.element_ty), mask=inside)
    tl.store(target + D // 2, second.to(kv.dtype.element_ty), mask=inside)


def rope_and_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    num_tokens, (_, _, block_tokens, kv_heads, head_dim) = qkv.shape[0], kv.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    if q_norm is not None and k_norm is not None and q_norm.shape[0] != head_dim:  # over all heads together: a pass of its own
        q, k, v = qkv.split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=1)
        qkv = torch.cat((rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps), v), dim=1)
        q_norm = k_norm = None
    room = token_room(num_tokens)
    q_out = torch.empty((room, heads, head_dim), dtype=qkv.dtype, device=qkv.device)[:num_tokens]
    if num_tokens:
        parts = triton.cdiv(heads, _HEADS_AT_ONCE) + 2 * triton.cdiv(kv_heads, _HEADS_AT_ONCE)
        _rope_and_write[(num_tokens, parts)](
            qkv, q_out, kv, scales, positions, slots, cos_sin, q_norm, k_norm, eps, heads, kv_heads, qkv.stride(0), kv.stride(0),
            0 if scales is None else scales.stride(0),
            block_tokens=block_tokens, D=head_dim, ROTATED=0 if cos_sin is None else cos_sin.shape[1], NORM=q_norm is not None,
            HB=_HEADS_AT_ONCE, HALF=triton.next_power_of_2(head_dim // 2), SCALED=scaling(scales), LIMIT=LARGEST.get(kv.dtype, 0.0),
            num_warps=4, **launch(qkv.device),
        )  # fmt: skip
    return q_out
