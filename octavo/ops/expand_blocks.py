"""GGUF's packed blocks to numbers: one readable function a kind, each `[blocks, block bytes] -> [blocks, block values]` in float32.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (block_q4_0 ... block_q6_K). The functions run on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

CHUNK_VALUES = 1 << 19  # values worked on at once: the temporaries stay in the processor's caches


def _half(raw: Tensor) -> Tensor:
    """[blocks, 2 n] bytes -> [blocks, n] float32, read as float16."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor, group: int) -> Tensor:
    """[blocks, n] bytes -> [blocks, 2 n]: in every `group` bytes first all low halves, then all high ones."""
    grouped = raw.unflatten(1, (-1, 1, group))
    return torch.cat((grouped & 15, grouped >> 4), dim=2).flatten(1)


def _bits(raw: Tensor, width: int, group: int) -> Tensor:
    """[blocks, n] bytes -> [blocks, 8 / width * n]: in every `group` bytes first all lowest fields of `width` bits, then the next."""
    grouped = raw.unflatten(1, (-1, 1, group))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=raw.device).view(1, 1, -1, 1)
    return ((grouped >> shifts) & ((1 << width) - 1)).flatten(1)


def _fifth_bits(raw: Tensor) -> Tensor:
    """[blocks, 4] bytes -> [blocks, 32]: bit i of the little-endian word, as 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return (((raw.unsqueeze(2) >> shifts) & 1) << 4).flatten(1)


def _q4_0(b: Tensor) -> Tensor:
    return _nibbles(b[:, 2:], 16).float().sub_(8).mul_(_half(b[:, :2]))


def _q4_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 4:], 16).float().mul_(_half(b[:, :2])).add_(_half(b[:, 2:4]))


def _q5_0(b: Tensor) -> Tensor:
    return (_nibbles(b[:, 6:], 16) | _fifth_bits(b[:, 2:6])).float().sub_(16).mul_(_half(b[:, :2]))


def _q5_1(b: Tensor) -> Tensor:
    return (_nibbles(b[:, 8:], 16) | _fifth_bits(b[:, 4:8])).float().mul_(_half(b[:, :2])).add_(_half(b[:, 2:4]))


def _q8_0(b: Tensor) -> Tensor:
    return b[:, 2:].view(torch.int8).float().mul_(_half(b[:, :2]))


def _q2_k(b: Tensor) -> Tensor:
    packed, q, d, low = b[:, :16], _bits(b[:, 16:80], 2, 32), _half(b[:, 80:82]), _half(b[:, 82:84])
    scale, offset = d * (packed & 15), low * (packed >> 4)  # [blocks, 16]: one for each 16 values
    return _affine(q, scale, offset)


def _q3_k(b: Tensor) -> Tensor:
    q = _bits(b[:, 32:96], 2, 32).view(torch.int8) - 4 + (_bits(b[:, :32], 1, 32) << 2).view(torch.int8)
    scale = _nibbles(b[:, 96:104], 8) | (_bits(b[:, 104:108], 2, 4) << 4)  # 16 scales of 6 bits
    return _affine(q, _half(b[:, 108:110]) * (scale.float() - 32), None)


def _scales_and_offsets(packed: Tensor) -> tuple[Tensor, Tensor]:
    """[blocks, 12] bytes -> 8 scales and 8 offsets of 6 bits each, as Q4_K and Q5_K pack them."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=1)
    offset = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=1)
    return scale, offset


def _q4_k(b: Tensor) -> Tensor:
    scale, offset = _scales_and_offsets(b[:, 4:16])
    return _affine(_nibbles(b[:, 16:], 32), _half(b[:, :2]) * scale, _half(b[:, 2:4]) * offset)


def _q5_k(b: Tensor) -> Tensor:
    scale, offset = _scales_and_offsets(b[:, 4:16])
    q = _nibbles(b[:, 48:], 32) | (_bits(b[:, 16:48], 1, 32) << 4)
    return _affine(q, _half(b[:, :2]) * scale, _half(b[:, 2:4]) * offset)


def _q6_k(b: Tensor) -> Tensor:
    q = (_nibbles(b[:, :128], 64) | (_bits(b[:, 128:192], 2, 32) << 4)).view(torch.int8) - 32
    return _affine(q, _half(b[:, 208:]) * b[:, 192:208].view(torch.int8), None)


def _affine(q: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """[blocks, values] whole numbers -> q * scale - offset, with one scale (and offset) for each of n equal groups of values."""
    values = q.unflatten(1, (scale.shape[1], -1)).float().mul_(scale.unsqueeze(2))
    return (values if offset is None else values.sub_(offset.unsqueeze(2))).flatten(1)


DEQUANTIZE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def expand_blocks(blocks: Tensor, kind: str, out: Tensor) -> None:
    """Packed blocks (uint8, any shape, contiguous) as numbers into `out` (any shape, contiguous), in their order. Exact in float32; other
    types are rounded from it."""
    expand, values = DEQUANTIZE[kind], 256 if kind.endswith("_K") else 32
    blocks = blocks.reshape(out.numel() // values, -1)  # [blocks, block bytes]
    by_block, step = out.view(-1, values), CHUNK_VALUES // values
    for first in range(0, blocks.shape[0], step):
        by_block[first : first + step] = expand(blocks[first : first + step])


def dequantize(blocks: Tensor, kind: str, num_values: int, dtype: torch.dtype) -> Tensor:
    """The same as a flat tensor [num_values] of its own."""
    out = torch.empty(num_values, dtype=dtype, device=blocks.device)
    expand_blocks(blocks, kind, out)
    return out
