"""Lowers a plan to the flat batch that the model sees. Inputs always sit in the same device buffers, in every mode.

The host writes only what it alone knows (which rows, how many tokens, prompt tokens); positions, lengths, fed-back tokens and KV slots are
computed on the device from the rows, so a plan may be built while the step before it still runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from octavo.config.resolved import Resolved
from octavo.context import UNPADDED, Batch, Room
from octavo.core.plan import Plan, Slice
from octavo.ops.select import REFERENCES, Ops
from octavo.worker.bounds import Bounds
from octavo.worker.rows import Rows

FED_BY_ROW = -1  # in place of a token's value: the row holds it
WIDER = 128  # rows, between sizes that are not captured


@dataclass(frozen=True)
class _Bounds:
    """Of a batch, see `Batch`."""

    max_count: int
    max_length: int
    fresh: tuple[int, ...] = ()
    max_old_count: int = 0


class BatchBuilder:
    """Owns the static buffers of one worker. `build` overwrites what the last call returned."""

    def __init__(self, settings: Resolved, block_tokens: Sequence[int], device: torch.device, ops: Ops = REFERENCES) -> None:
        max_tokens, max_slices = settings.max_num_batched_tokens, settings.max_num_seqs
        self._block_tokens = tuple(block_tokens)  # per KV group
        self._device = device
        # Everything the host knows travels in one copy: [owner, fed token] a token, then [row, start, sampled position, sampled row].
        num_words = 2 * max_tokens + 4 * max_slices + 2
        num_hosts = settings.overlap_depth + 2 if device.type == "cuda" else 1  # a pinned buffer is not touched while its copy may run
        self._hosts = [torch.empty(num_words, dtype=torch.int64, pin_memory=device.type == "cuda") for _ in range(num_hosts)]
        self._next_host = 0
        self._staged = torch.empty(num_words, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._slots = torch.full((len(self._block_tokens), max_tokens), -1, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(max_slices, dtype=torch.int32, device=device)
        self._starts = torch.zeros(max_slices + 1, dtype=torch.int32, device=device)
        self._rows = torch.zeros(max_slices, dtype=torch.int32, device=device)
        self._offsets = torch.arange(max_tokens, device=device)
        self._each_start = torch.arange(max_slices + 1, dtype=torch.int32, device=device)  # of slices of one token each
        self._max_length = settings.max_model_len
        self._ops = ops
        self._sizes = padded_sizes(settings)

    def build(self, plan: Plan, rows: Rows, room: Room = UNPADDED) -> Batch:
        """The batch of `plan`; the plan's news must have been applied to the rows.

        In a room all that the host says of the batch follows from the room's sizes: a graph captured there serves every batch in it.
        """
        slices = plan.slices
        num_slices = len(slices)
        bounds = _bounds(slices, rows.bounds)
        at_least = max(plan.num_tokens_all, room.num_tokens)
        owner, fed, row, starts, sample_at, sample_rows = self._stage(slices, rows.padding, at_least, room.num_slices)
        num_tokens, num_places = owner.numel(), row.numel() - 1
        num_real = sum(piece.count for piece in slices)
        token_rows = row[owner]  # [T]
        offset = self._offsets[:num_tokens] - starts[owner]  # [T] within its slice
        positions = torch.add(rows.computed[token_rows], offset, out=self._positions[:num_tokens])
        if num_real < num_tokens:
            positions[num_real:].zero_()
        held = rows.last_token[token_rows]
        if rows.drafts.shape[1]:
            held = torch.where(offset > 0, rows.drafts[token_rows, (offset - 1).clamp(0, rows.drafts.shape[1] - 1)], held)
        tokens = self._tokens[:num_tokens]
        torch.where(fed == FED_BY_ROW, held, fed, out=tokens)
        used = (fed != FED_BY_ROW) | (offset <= rows.num_drafts[token_rows])  # [T]: false for drafts that were not there after all
        slots = self._slots[:, :num_tokens]
        for group, block_tokens in enumerate(self._block_tokens):
            block = rows.block_tables[group][token_rows, positions // block_tokens].to(torch.int64)  # [T]
            slots[group] = torch.where(used, block * block_tokens + positions % block_tokens, -1)
        if num_real < num_tokens:
            slots[:, num_real:].fill_(-1)
        batch_starts, batch_rows = self._starts[: num_places + 1], self._rows[:num_places]
        batch_starts.copy_(starts)
        batch_rows.copy_(row[:num_places])
        lengths = torch.add(rows.computed[row[:num_places]], batch_starts.diff(), out=self._lengths[:num_places])
        lengths[num_slices:].zero_()
        if room != UNPADDED:
            num_real, num_slices, bounds = num_tokens, num_places, _Bounds(num_tokens, self._max_length)
        return Batch(
            tokens=tokens,
            positions=positions,
            starts=batch_starts,
            lengths=lengths,
            rows=batch_rows,
            slots=slots,
            sample_at=sample_at,
            sample_rows=sample_rows,
            num_tokens=num_real,
            num_slices=num_slices,
            max_count=bounds.max_count,
            max_length=bounds.max_length,
            fresh=bounds.fresh,
            max_old_count=bounds.max_old_count,
        )

    def decode(self, row_ids: torch.Tensor, rows: Rows, max_length: int) -> Batch:
        """One token for each of the rows [S] int64, by operations on the device alone; the padding row gets nothing to do. No context is
        longer than `max_length`."""
        num = row_ids.numel()
        tokens, positions, slots = self._tokens[:num], self._positions[:num], self._slots[:, :num]
        lengths, batch_rows = self._lengths[:num], self._rows[:num]
        for group, block_tokens in enumerate(self._block_tokens):
            self._ops.decode_batch(
                row_ids, rows.computed, rows.last_token, rows.block_tables[group], rows.padding, block_tokens,
                (tokens, positions, lengths, batch_rows), slots[group], first=group == 0,
            )  # fmt: skip
        each = self._offsets[:num]
        return Batch(
            tokens=tokens,
            positions=positions,
            starts=self._each_start[: num + 1],
            lengths=lengths,
            rows=batch_rows,
            slots=slots,
            sample_at=each,
            sample_rows=row_ids,
            num_tokens=num,
            num_slices=num,
            max_count=1,
            max_length=max_length,
        )

    def _stage(self, slices: Sequence[Slice], padding_row: int, at_least: int, places: int) -> Sequence[torch.Tensor]:
        """Bring what the host knows to the device: owner and fed token [T], row [S + 1], start [S + 1], sampled position [N] and row.

        There are `at_least` tokens unless that is 0, and `places` for slices. Padding tokens belong to the last slice, of the padding row.
        """
        num_slices = len(slices)
        counts = np.fromiter((piece.count for piece in slices), np.int64, num_slices)
        row = np.full(max(num_slices, places) + 1, padding_row, np.int64)
        row[:num_slices] = [piece.row for piece in slices]
        samples = np.fromiter((piece.sample for piece in slices), np.bool_, num_slices)
        num_real = int(counts.sum())
        starts = np.full(len(row), num_real, np.int64)
        starts[0], starts[1 : num_slices + 1] = 0, np.cumsum(counts)
        num_tokens = at_least or self._padded(num_real)
        owner = np.full(num_tokens, num_slices, np.int64)
        owner[:num_real] = np.repeat(np.arange(num_slices), counts)
        fed = np.full(num_tokens, FED_BY_ROW, np.int64)
        fed[num_real:] = 0
        for piece, start in zip(slices, starts):
            if piece.tokens:
                fed[start : start + len(piece.tokens)] = piece.tokens
        sampled_rows = row[:num_slices][samples]
        sample_at = np.zeros(self._padded(len(sampled_rows)), np.int64)
        sample_at[: len(sampled_rows)] = starts[1 : num_slices + 1][samples] - 1
        parts = (owner, fed, row, starts, sample_at, sampled_rows)
        num_words = sum(len(part) for part in parts)
        host = self._hosts[self._next_host]
        self._next_host = (self._next_host + 1) % len(self._hosts)
        np.concatenate(parts, out=host.numpy()[:num_words])
        staged = self._staged[:num_words]
        staged.copy_(host[:num_words], non_blocking=True)
        return staged.split([len(part) for part in parts])

    def _padded(self, count: int) -> int:
        """How many rows products have for so many tokens, or sampled ones."""
        at = bisect_left(self._sizes, count)
        return self._sizes[at] if count and at < len(self._sizes) else count


def _bounds(slices: Sequence[Slice], known: Bounds) -> _Bounds:
    """What the host can say of slices whose plan the rows have followed."""
    max_count = max_old_count = 0
    fresh: list[int] = []
    for piece in slices:
        max_count = max(max_count, piece.count)
        if known.of(piece.row) == piece.count:
            fresh.append(piece.count)
        else:
            max_old_count = max(max_old_count, piece.count, *fresh)
            fresh.clear()
    return _Bounds(max_count, known.longest, tuple(fresh), max_old_count)


def padded_sizes(settings: Resolved) -> tuple[int, ...]:
    """The numbers of rows that steps of up to `max_num_seqs` tokens are padded to where decode steps are captured: the captured sizes, and
    wider ones.

    Libraries have kernels of their own for many a number of rows. The first use of one loads it, for which the driver waits until the
    device is idle; so all are used before the first request.
    """
    if not settings.graph_sizes:
        return ()
    most = settings.max_num_seqs
    captured = tuple(size for size in settings.graph_sizes if size <= most)
    wider = range((captured[-1] if captured else 0) + WIDER, most + 1, WIDER)
    return (*captured, *wider)
