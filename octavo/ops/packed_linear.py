"""Products with weights of 4 or 8 bits that have a scale, and perhaps an offset, for every 32 values along a row (GGUF's Q4_0, Q4_1, Q8_0).

Layout, which lets one load feed 16 outputs:

    codes   [n / 16, k / 32, 4, 16, 4] uint8, of 4 bits: byte (j, output, i) holds value 8 j + i of a group in its low half, 8 j + 4 + i
            in its high half
            [n / 16, k / 32, 8, 16, 4] uint8, of 8 bits: byte (j, output, i) holds value 4 j + i, a signed number
    scales  [n / 16, k / 32, 1 or 2, 16] float16: scales, then offsets where there are any; without, 4-bit codes count from -8
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from octavo.ops.gated import gelu_tanh_mul, silu_mul
from octavo.ops.linear import added, around
from octavo.ops.rms_norm import rms_norm

GROUP = 32  # values along a row that share a scale
PANEL = 16  # outputs side by side
LARGEST = 127 * 128  # code of an activation in 15 bits


class Packed(NamedTuple):
    """A weight [out_features, k]; whole panels are stored."""

    codes: torch.Tensor
    scales: torch.Tensor
    out_features: int


def pack(values: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, bits: int) -> Packed:
    """values [n, k / 32, 32] (uint8 of 4 bits, or int8), scale and offset [n, k / 32] float16."""
    n, groups, _ = values.shape
    padding = -n % PANEL
    quads = F.pad(values.view(torch.uint8), (0, 0, 0, 0, 0, padding)).view(-1, PANEL, groups, GROUP // 4, 4)
    if bits == 4:
        quads = quads[:, :, :, 0::2] | (quads[:, :, :, 1::2] << 4)
    numbers = torch.stack((scale, offset) if offset is not None else (scale,), dim=2)  # [n, groups, 1 or 2]
    numbers = F.pad(numbers, (0, 0, 0, 0, 0, padding)).unflatten(0, (-1, PANEL))
    return Packed(quads.permute(0, 2, 3, 1, 4).contiguous(), numbers.permute(0, 2, 3, 1).contiguous(), n)


def numbers_of(kind: str) -> int:
    """How many float16 stand before the codes of a block: a scale, and in Q4_1 an offset."""
    return 2 if kind == "Q4_1" else 1


def pack_blocks(blocks: torch.Tensor, kind: str) -> Packed:
    """GGUF's blocks [n, k / 32, block bytes] uint8 of a kind (Q4_0, Q4_1, Q8_0), laid out for the product."""
    num_bytes = 2 * numbers_of(kind)
    numbers = blocks[:, :, :num_bytes].contiguous().view(torch.float16)  # [n, k / 32, 1 or 2]
    offset = numbers[:, :, 1] if kind == "Q4_1" else None
    codes = blocks[:, :, num_bytes:]
    if kind == "Q8_0":
        return pack(codes.contiguous().view(torch.int8), numbers[:, :, 0], None, bits=8)
    return pack(torch.cat((codes & 15, codes >> 4), dim=2), numbers[:, :, 0], offset, bits=4)


def unpack(weight: Packed, rows: torch.Tensor | None = None) -> torch.Tensor:
    """The weight, or the `rows` [T] of it, as float32 [out_features or T, k]."""
    if rows is None:
        quads = weight.codes.permute(0, 3, 1, 2, 4).flatten(0, 1)[: weight.out_features]  # [T, groups, 4 or 8, 4]
        numbers = weight.scales.permute(0, 3, 1, 2).flatten(0, 1)[: weight.out_features].float()  # [T, groups, 1 or 2]
    else:
        panel, place = rows // PANEL, rows % PANEL
        quads, numbers = weight.codes[panel, :, :, place], weight.scales[panel, :, :, place].float()
    narrow = quads.shape[2] == 4
    if narrow:
        quads = torch.stack((quads & 15, quads >> 4), dim=3)
    values = quads.reshape(*quads.shape[:2], GROUP).view(torch.int8).float()
    if numbers.shape[2] == 2:
        values = values * numbers[:, :, :1] + numbers[:, :, 1:]
    else:
        values = (values - 8 if narrow else values) * numbers
    return values.flatten(1)


def packed_rows(weight: Packed, tokens: torch.Tensor, first: int, dtype: torch.dtype) -> torch.Tensor:
    """The weight as the rows `first` and up of an embedding: tokens [T] int64 -> [T, k], zeros for rows that are elsewhere."""
    local = tokens - first
    here = (local >= 0) & (local < weight.out_features)
    return (unpack(weight, local.where(here, 0)) * here.unsqueeze(-1)).to(dtype)


def round_groups(x: torch.Tensor) -> torch.Tensor:
    """x [T, k] float32 rounded as a twin may do it before it multiplies: each group of 32 to 8 bits, and to 15 bits those whose largest
    number exceeds the root mean square of the largest numbers of the row's groups."""
    grouped = x.unflatten(1, (-1, GROUP))
    largest = grouped.abs().amax(-1, keepdim=True)
    scale = largest / LARGEST
    fine = (grouped / scale).round().nan_to_num(0.0)
    coarse = ((fine + 64) / 128).floor() * 128
    stands_out = largest.square() * grouped.shape[1] > largest.square().sum(1, keepdim=True)
    return (torch.where(stands_out, fine, coarse) * scale).flatten(1)


def product(
    x: torch.Tensor, weight: Packed, bias: torch.Tensor | None, residual: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """x [T, k] -> [T, out_features]. A twin may round x: `round_groups`."""
    y = x.float() @ unpack(weight).T
    return added((y if bias is None else y + bias.float()).to(x.dtype), residual, scale)


packed_linear = around(product, rms_norm, {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul})
