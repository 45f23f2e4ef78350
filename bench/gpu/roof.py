"""A plain read: how fast memory can be."""
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read(memory, order, out, num, WORDS: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, WORDS)
    total = tl.zeros([WORDS], tl.int32)
    for run in tl.range(program, num, programs):
        total = total ^ tl.load(memory + tl.load(order + run).to(tl.int64) * WORDS + at)
    tl.store(out + program, tl.xor_sum(total, axis=0).to(tl.float32))
