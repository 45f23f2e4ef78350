"""What comes between the products and attention where one vector a token is kept: its norm, rotation, and writing to the paged memory."""

from __future__ import annotations

import torch

from octavo.ops.rms_norm import rms_norm
from octavo.ops.rope_and_write import places


def latent_rope_and_write(
    q: torch.Tensor,
    kept: torch.Tensor,
    rotated_q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos_sin: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> None:
    """Rotate q into `rotated_q`; of `kept` norm the vector, rotate the part of the key behind it, and write both at `slots`.

    q          [T, heads, rotated], in pairs (2i, 2i + 1)
    kept       [T, rank + rotated], the last in such pairs too
    rotated_q  [T, heads, rotated], written in pairs (i, i + rotated / 2), as the memory gets them; may be a part of a wider tensor
    kv         [num_blocks, 1, block_tokens, 1, rank + rotated]
    positions  [T] int64, each below the length of `cos_sin`
    slots      [T] int64, block * block_tokens + offset; -1: not kept
    cos_sin    [max_length, rotated] float32: cosines, then sines
    weight     [rank] float32, of the norm
    """
    rank = weight.shape[0]
    angles = cos_sin[positions]  # [T, rotated]
    rotated_q.copy_(_rotated(q, angles.unsqueeze(1)))
    rows = torch.cat((rms_norm(kept[:, :rank], weight, eps), _rotated(kept[:, rank:], angles).to(kept.dtype)), dim=1)
    source, at = places(slots, kv.shape[2])
    kv[at[0], 0, at[1], 0] = rows[source].to(kv.dtype).where((slots >= 0).any(), kv[0, 0, 0, 0])


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [..., rotated] of pairs (2i, 2i + 1) turned, in pairs (i, i + rotated / 2), in float32."""
    cos, sin = angles.chunk(2, dim=-1)
    first, second = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
