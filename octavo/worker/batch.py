"""Lowers a plan to the flat batch that the model sees. Inputs always sit in the same device buffers, in every mode.

The host writes only what it alone knows (which rows, how many tokens, prompt tokens); positions, lengths, fed-back tokens and KV slots are
computed on the device from the rows, so a plan may be built while the step before it still runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from octavo.context import Batch
from octavo.core.plan import Plan
from octavo.worker.rows import Rows


class Buffers:
    """Static device memory for one batch at a time, and one pinned host twin that a step's host-known numbers travel in."""

    def __init__(self, max_tokens: int, max_slices: int, num_groups: int, device: torch.device) -> None:
        self.max_tokens, self.max_slices = max_tokens, max_slices
        # One int64 transfer a step: [slice of token | host token or -1] per token, then [row, count, sample_at] per slice.
        self.num_words = 2 * max_tokens + 4 * max_slices + 1
        self.host = torch.empty(self.num_words, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.staged = torch.empty(self.num_words, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self.slots = torch.full((num_groups, max_tokens), -1, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(max_slices, dtype=torch.int32, device=device)
        self.starts = torch.zeros(max_slices + 1, dtype=torch.int32, device=device)
        self.rows = torch.zeros(max_slices, dtype=torch.int32, device=device)


def build(plan: Plan, rows: Rows, buffers: Buffers, block_tokens: Sequence[int]) -> Batch:
    """The batch of `plan` over the rows after `rows.apply(plan)`. `block_tokens[g]` is the block size of KV group g."""
    slices = plan.slices
    num_slices = len(slices)
    counts = np.fromiter((piece.count for piece in slices), dtype=np.int64, count=num_slices)
    row_ids = np.fromiter((piece.row for piece in slices), dtype=np.int64, count=num_slices)
    starts = np.zeros(num_slices + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    num_tokens = int(starts[-1])
    fed = np.full(num_tokens, -1, dtype=np.int64)  # -1: the row feeds it
    for piece, start in zip(slices, starts):
        if piece.tokens:
            fed[start : start + len(piece.tokens)] = piece.tokens
    sampled = [index for index, piece in enumerate(slices) if piece.sample]

    host = buffers.host.numpy()
    words = [np.repeat(np.arange(num_slices), counts), fed, row_ids, starts, starts[1:][sampled] - 1, row_ids[sampled]]
    ends = np.cumsum([len(part) for part in words])
    for part, end in zip(words, ends):
        host[end - len(part) : end] = part
    staged = buffers.staged[: ends[-1]]
    staged.copy_(buffers.host[: ends[-1]], non_blocking=True)
    owner, fed_d, row_d, starts_d, sample_at, sample_rows = staged.split([len(part) for part in words])

    token_rows = row_d[owner]  # [T]
    offset = torch.arange(num_tokens, device=staged.device) - starts_d[owner]  # [T] within its slice
    positions = torch.add(rows.computed[token_rows], offset, out=buffers.positions[:num_tokens])
    tokens = torch.where(fed_d >= 0, fed_d, rows.feed(token_rows, offset))
    buffers.tokens[:num_tokens] = tokens
    valid = (fed_d >= 0) | (offset <= rows.num_drafts[token_rows])
    for group, tokens_a_block in enumerate(block_tokens):
        block = rows.block_tables[group][token_rows, positions // tokens_a_block]  # [T]
        slot = block.to(torch.int64) * tokens_a_block + positions % tokens_a_block
        buffers.slots[group, :num_tokens] = torch.where(valid, slot, -1)
    buffers.starts[: num_slices + 1] = starts_d
    buffers.rows[:num_slices] = row_d
    buffers.lengths[:num_slices] = rows.computed[row_d] + (starts_d[1:] - starts_d[:-1])
    max_length = max((rows.bound[piece.row] + piece.count for piece in slices), default=0)
    return Batch(
        tokens=buffers.tokens[:num_tokens],
        positions=positions,
        starts=buffers.starts[: num_slices + 1],
        lengths=buffers.lengths[:num_slices],
        rows=buffers.rows[:num_slices],
        slots=buffers.slots[:, :num_tokens],
        sample_at=sample_at,
        sample_rows=sample_rows,
        num_tokens=num_tokens,
        num_slices=num_slices,
        max_count=int(counts.max(initial=0)),
        max_length=max_length,
    )
