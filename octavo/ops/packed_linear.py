"""Products with weights of 4 or 8 bits that have a scale, and perhaps an offset, for every 32 values along a row (GGUF's Q4_0, Q4_1, Q8_0).

Layout, which lets one load feed 16 outputs:

    codes   [n / 16, k / 32, 4, 16, 4] uint8, of 4 bits: byte (j, output, i) holds value 8 j + i of a group in its low half, 8 j + 4 + i
            in its high half
            [n / 16, k / 32, 8, 16, 4] uint8, of 8 bits: byte (j, output, i) holds value 4 j + i, a signed number
    scales  [n / 16, k / 32, 1 or 2, 16] float16: scales, then offsets where there are any; without, 4-bit codes count from -8
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

GROUP = 32  # values along a row that share a scale
PANEL = 16  # outputs side by side


def pack(values: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """values [n, k / 32, 32] (uint8 of 4 bits, or int8), scale and offset [n, k / 32] float16 -> codes, scales, in whole panels."""
    n, groups, _ = values.shape
    padding = -n % PANEL
    quads = F.pad(values.view(torch.uint8), (0, 0, 0, 0, 0, padding)).view(-1, PANEL, groups, GROUP // 4, 4)
    if bits == 4:
        quads = quads[:, :, :, 0::2] | (quads[:, :, :, 1::2] << 4)
    numbers = torch.stack((scale, offset) if offset is not None else (scale,), dim=2)  # [n, groups, 1 or 2]
    numbers = F.pad(numbers, (0, 0, 0, 0, 0, padding)).unflatten(0, (-1, PANEL))
    return quads.permute(0, 2, 3, 1, 4).contiguous(), numbers.permute(0, 2, 3, 1).contiguous()


def unpack(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight as float32 [n, k], padding rows included."""
    panels, groups, per_group = codes.shape[:3]
    quads = codes.permute(0, 3, 1, 2, 4)  # [panels, 16, groups, 4 or 8, 4]
    if per_group == 4:
        quads = torch.stack((quads & 15, quads >> 4), dim=4).view(torch.int8)
    values = quads.reshape(panels, PANEL, groups, GROUP).view(torch.int8).float()
    numbers = scales.float().permute(2, 0, 3, 1).unsqueeze(-1)  # [1 or 2, panels, 16, groups, 1]
    if len(numbers) == 2:
        values = values * numbers[0] + numbers[1]
    else:
        values = (values - 8 if per_group == 4 else values) * numbers[0]
    return values.reshape(panels * PANEL, groups * GROUP)


def round_groups(x: torch.Tensor) -> torch.Tensor:
    """x [T, k] float32 with each group of 32 rounded to 8 bits: what a twin may compute with instead of x."""
    grouped = x.unflatten(1, (-1, GROUP))
    scale = grouped.abs().amax(-1, keepdim=True) / 127
    return ((grouped / scale).round().nan_to_num(0.0) * scale).flatten(1)


def packed_linear(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, out_features: int, bias: torch.Tensor | None
) -> torch.Tensor:
    """x [T, k] times the packed weight transposed, plus bias [out_features] -> [T, out_features]. A twin may round x: `round_groups`."""
    y = x.float() @ unpack(codes, scales)[:out_features].T
    return (y if bias is None else y + bias.float()).to(x.dtype)
