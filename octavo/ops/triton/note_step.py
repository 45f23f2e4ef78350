"""What a step leaves in the rows of its sequences, in one launch: torch's four each take as long."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch

_BLOCK = 128


@triton.jit(
    do_not_specialize=["num_slices", "num_sampled", "padding", "newest_stride"],
    do_not_specialize_on_alignment=["rows", "starts", "sampled", "newest"],
)
def _note_step(
    computed, last_token, rows, starts, sampled, newest, num_slices, num_sampled, padding, newest_stride,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    follow(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + at, mask=at < num_slices, other=padding)
    real = row != padding  # which stays at 0; of any other row there is one slice
    count = tl.load(starts + at + 1, mask=real, other=0) - tl.load(starts + at, mask=real, other=0)
    tl.store(computed + row, tl.load(computed + row, mask=real, other=0) + count, mask=real)
    inside = at < num_sampled
    token = tl.load(newest + at * newest_stride, mask=inside, other=0)
    tl.store(last_token + tl.load(sampled + at, mask=inside, other=0), token, mask=inside)


def note_step(
    computed: torch.Tensor,
    last_token: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    sampled: torch.Tensor,
    newest: torch.Tensor,
    padding: int,
) -> None:
    num = max(rows.shape[0], sampled.shape[0])
    if num:
        _note_step[(triton.cdiv(num, _BLOCK),)](
            computed, last_token, rows, starts, sampled, newest, rows.shape[0], sampled.shape[0], padding, newest.stride(0),
            BLOCK=_BLOCK, num_warps=4, **launch(computed.device),
        )  # fmt: skip
