"""What comes between the q/k/v product and attention: norms of q and k, rotation, and writing K and V to the paged memory."""

from __future__ import annotations

import torch

from octavo.ops.kv_format import compressed
from octavo.ops.rms_norm import rms_norm


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
    """Give q ready for attention; K and V of these tokens are in `kv` afterwards.

    qkv        [T, (heads + 2 * kv_heads) * head_dim], packed q, k, v
    kv         [num_blocks, 2, block_tokens, kv_heads, head_dim], written at `slots`
    positions  [T] int64, each below the length of `cos_sin`
    slots      [T] int64, block * block_tokens + offset; -1: this token's K and V are not kept
    cos_sin    [max_length, rotated] float32: cosines, then sines, of the rotated / 2 pairs (i, i + rotated / 2); None: no rotation
    q_norm     [head_dim] (each head by itself) or [heads * head_dim] (all together), float32; None: no norm. k_norm likewise
    scales     of the KV format (`kv_format`), written where there is one a token and head
    ->         [T, heads, head_dim]
    """
    kv_heads, head_dim = kv.shape[3], kv.shape[4]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q, k, v = qkv.split((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=1)
    if q_norm is not None and k_norm is not None:
        q = rms_norm(q.unflatten(1, (-1, q_norm.shape[0])), q_norm, eps)
        k = rms_norm(k.unflatten(1, (-1, k_norm.shape[0])), k_norm, eps)
    q = q.reshape(-1, heads, head_dim)
    k = k.reshape(-1, kv_heads, head_dim)
    if cos_sin is not None:
        angles = cos_sin[positions].unsqueeze(1)  # [T, 1, rotated]
        q, k = _rotate(q, angles), _rotate(k, angles)
    _write(kv, slots, k, v.reshape(-1, kv_heads, head_dim), scales)
    return q


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + rotated / 2) of each head of x [T, heads, head_dim]; what lies beyond `rotated` passes through."""
    half = angles.shape[-1] // 2
    cos, sin = angles[..., :half], angles[..., half:]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(((first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype), rest), dim=-1)


def _write(kv: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scales: torch.Tensor | None) -> None:
    """Store k and v [T, kv_heads, head_dim] at their slots."""
    kept = slots >= 0
    source, (block, offset) = places(slots, kv.shape[2])
    new, new_scales = compressed(torch.stack((k, v), dim=1)[source], kv.dtype, scales)  # [T, 2, kv_heads, head_dim], [T, 2, kv_heads]
    at = block, slice(None), offset
    bits = kv.view(torch.uint8) if kv.dtype.itemsize == 1 else kv  # torch does not choose among values of 8 bits, but among bytes
    bits[at] = new.view(bits.dtype).where(kept.any(), bits[0, :, 0])
    if scales is not None and new_scales is not None:
        scales[at] = new_scales.where(kept.any(), scales[0, :, 0])


def places(slots: torch.Tensor, block_tokens: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Which token is written for each [T], and to which block and offset.

    Shapes must not depend on values (graphs), so a token without a slot repeats the write of the first token that has one; if none
    has, all of them are to write what stands in slot 0 back to it.
    """
    kept = slots >= 0
    source = torch.arange(slots.shape[0], device=slots.device).where(kept, kept.int().argmax())
    slot = slots[source].clamp(min=0)
    return source, (slot // block_tokens, slot % block_tokens)
