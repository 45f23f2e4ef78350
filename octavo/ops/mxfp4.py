"""Weights of 4 bits in the MXFP4 format: 32 values along a row share a scale, a power of two.

Source: OCP Microscaling Formats (MX) Specification 1.0, section 5.3: values are e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives),
scales e8m0 (the exponent, counted from -127). In files (GPT-OSS) byte i of a group holds value 2 i in its low half and 2 i + 1 in its high
half. In memory it holds values i and i + 16: two stretches of a row of activations then meet the two halves of a stretch of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from octavo.ops.grouped_linear import ByExpert, GroupedLinearOp, GroupedSumOp

GROUP = 32  # values that share a scale
BYTES = GROUP // 2  # that they lie in
EXPONENT_OF_ONE = 127
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class Mxfp4:
    """Weights [..., out, in] of experts, or of one."""

    codes: torch.Tensor  # [..., out, in / 32, 16] uint8, as `rearranged`
    scales: torch.Tensor  # [..., out, in / 32] uint8

    @property
    def out_features(self) -> int:
        return self.scales.shape[-2]

    @property
    def in_features(self) -> int:
        return self.scales.shape[-1] * GROUP

    def __getitem__(self, expert: int) -> Mxfp4:
        return Mxfp4(self.codes[expert], self.scales[expert])

    def wide(self, dtype: torch.dtype) -> torch.Tensor:
        """[..., out, in]"""
        return scaled(torch.cat((self.codes & 15, self.codes >> 4), dim=-1), self.scales, dtype)


def scaled(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """codes [..., groups, 32] of 4 bits each, scales [..., groups] uint8 -> [..., groups * 32]"""
    values = torch.tensor(VALUES, dtype=dtype, device=codes.device)[codes.int()]
    return torch.ldexp(values, (scales.int() - EXPONENT_OF_ONE).unsqueeze(-1)).flatten(-2).to(dtype)


def halves(blocks: torch.Tensor) -> torch.Tensor:
    """The codes of a file's bytes in order: [..., 16] -> [..., 32]"""
    return torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)


def rearranged(blocks: torch.Tensor) -> torch.Tensor:
    """The bytes of a file [..., 16] as they lie in memory."""
    codes = halves(blocks)
    return codes[..., :BYTES] | (codes[..., BYTES:] << 4)


_by_expert = ByExpert[Mxfp4](lambda x, weight, bias: F.linear(x, weight.wide(x.dtype), bias), lambda weight: weight.out_features)
mxfp4_linear: GroupedLinearOp[Mxfp4] = _by_expert.linear
mxfp4_sum: GroupedSumOp[Mxfp4] = _by_expert.sum
