"""The largest logit of each row and the lowest token that has it: [N, vocab] read once, by many programs a row, then their results."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.dependent import follow, launch

_BLOCK = 4096


@triton.jit
def _largest(value, at):
    """The largest of value [N], and the least of `at` [N] that has it. NaN counts as largest, so that a row with one is known by its peak.

    Two plain reductions: one that carries an index with each value takes twice the instructions.
    """
    broken = value != value
    peak = tl.where(tl.max(broken.to(tl.int32), axis=0) > 0, float("nan"), tl.max(value, axis=0))  # the latter passes NaN over
    return peak, tl.min(tl.where((value == peak) | broken, at, 2147483647), axis=0)


@triton.jit
def _best_of_parts(logits, part_peak, part_token, vocab, stride, PARTS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    peak, token = _largest(value, at)
    tl.store(part_peak + row * PARTS + part, peak)
    tl.store(part_token + row * PARTS + part, token)


@triton.jit
def _best_of_all(part_peak, part_token, peaks, tokens, PARTS, BLOCK: tl.constexpr, PDL: tl.constexpr):
    follow(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(part_peak + row * PARTS + at, mask=at < PARTS, other=-float("inf"))
    peak, part = _largest(value, at)
    tl.store(peaks + row, peak)
    tl.store(tokens + row, tl.load(part_token + row * PARTS + part).to(tl.int64))


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [N] int64 and logits [N] float32 of the largest in each row of logits [N, vocab]; NaN counts as largest."""
    num_rows, vocab = logits.shape
    parts = triton.cdiv(vocab, _BLOCK)
    part_peak = torch.empty((num_rows, parts), dtype=torch.float32, device=logits.device)
    part_token = torch.empty((num_rows, parts), dtype=torch.int32, device=logits.device)
    peaks = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        given = launch(logits.device)
        _best_of_parts[(num_rows, parts)](
            logits, part_peak, part_token, vocab, logits.stride(0), parts, BLOCK=_BLOCK, num_warps=4, **given
        )
        _best_of_all[(num_rows,)](
            part_peak, part_token, peaks, tokens, parts, BLOCK=triton.next_power_of_2(parts), num_warps=1, **given
        )
    return tokens, peaks
