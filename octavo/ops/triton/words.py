"""Numbers that travel between ranks as words of 4 bytes, two of them in a word where they have 16 bits: how words are summed."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Not Triton's own names of types: a constant of that name and the type itself are one to its cache.
KINDS = {torch.bfloat16: "bfloat", torch.float16: "half", torch.float32: "float"}


@triton.jit
def add_words(low, high, word, KIND: tl.constexpr):
    """The sums of the lower and of the upper numbers, float32, with those of `word` [N] int32; the upper ones are only of 16 bits."""
    if KIND == "float":
        low += word.to(tl.float32, bitcast=True)
    elif KIND == "bfloat":
        low += (word << 16).to(tl.float32, bitcast=True)
        high += (word & -65536).to(tl.float32, bitcast=True)
    else:
        low += word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        high += (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def as_words(low, high, KIND: tl.constexpr):
    """Sums back in words [N] int32."""
    if KIND == "float":
        word = low.to(tl.int32, bitcast=True)
    elif KIND == "bfloat":
        first = low.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word = first | (high.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        first = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        word = first | (high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    return word
