"""Number formats of K and V in memory, and the scales that go with them.

format                  scales
the model's, or other   None: values as they are
floating-point types
fp8_e4m3, fp8_e5m2      [2] float32, for K and for V: value = stored * scale
int8                    [num_blocks, 2, block_tokens, kv_heads] float16, beside the memory and written with it: the largest
                        magnitude of a token's head over 127
"""

from __future__ import annotations

import torch

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}  # what is stored goes no further than this
FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
COMPRESSED = frozenset({*FP8, "int8"})


def kv_dtype(name: str) -> torch.dtype:
    """The torch dtype of a KV format's name."""
    return FP8.get(name) or getattr(torch, name)


def scaling(scales: torch.Tensor | None) -> int:
    """0: no scales, 1: one for K and one for V, 2: one a token and head."""
    return 0 if scales is None else 1 if scales.dim() == 1 else 2


def compressed(x: torch.Tensor, dtype: torch.dtype, scales: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x [..., 2, heads, head_dim], K and V, as it is stored, and the scales to store with it [..., 2, heads]."""
    if scales is None:
        return x.to(dtype), None
    limit = LARGEST[dtype]
    if dtype is not torch.int8:
        return (x.float() / scales[:, None, None]).clamp(-limit, limit).to(dtype), None
    new = (x.float().abs().amax(-1) / limit).to(scales.dtype)  # rounded before it is divided by
    steps = x.float() / torch.where(new > 0, new.float(), 1.0).unsqueeze(-1)
    return (steps + 0.5).floor().clamp(-limit, limit).to(dtype), new


def restored(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The values of stored [..., 2, tokens, heads, head_dim] with its scales [..., 2, tokens, heads] or [2], in float32."""
    if scales is None:
        return stored.float()
    return stored.float() * (scales.float().unsqueeze(-1) if scales.dim() > 1 else scales[:, None, None, None])
