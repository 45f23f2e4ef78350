"""Rows: the device's side of the running sequences, one row each, from admission until they finish or are preempted.

All row values share one flat int32 memory. Each column is a view of a part of it, so whatever a plan brings (new rows, grown block
tables) is one list of (address, value): one copy to the device and one scatter a step, and nothing at all when there is no news.
Rows are never moved. The device's `computed` is the truth about a sequence's position; the host never reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from octavo.config.resolved import Resolved
from octavo.context import Batch
from octavo.core.plan import Admission, Growth, Plan
from octavo.ops.note_step import note_step
from octavo.ops.select import NoteStep
from octavo.sampling.sampled import Sampled
from octavo.sampling.stage import Column, Filler, Place
from octavo.worker.bounds import Bounds
from octavo.worker.memory import zeros

_ALIGN_WORDS = 4  # columns start at multiples of 16 bytes
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


@dataclass(frozen=True)
class Held:
    """The host's knowledge of a row in use."""

    admission: Admission
    wanted: tuple[Filler, ...]  # the stages that this sequence needs, in order
    slot: int = 0  # in the vocabulary-wide pools; 0: none


@dataclass(frozen=True)
class _Region:
    """Where a column lies: `address + row * words` in the memory, and `record` in the values of one row."""

    column: Column
    address: int
    words: int
    record: slice


@dataclass
class _News:
    """Addresses and values to write, gathered over a plan."""

    addresses: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, addresses: np.ndarray, values: np.ndarray) -> None:
        self.addresses.append(addresses)
        self.values.append(values)


class Rows:
    """Tensors `[R, ...]` indexed by row, R = max_num_seqs + 1: the last row, `padding`, belongs to nobody, and what a padded batch
    writes goes there.

    `table_widths`: the most blocks a sequence can have, per KV group. `stages`: whoever declares columns. `num_slots`: how many rows may
    hold vocabulary-wide columns at once; the scheduler keeps admissions below it.
    """

    def __init__(
        self,
        settings: Resolved,
        table_widths: Sequence[int],
        stages: Sequence[Filler] = (),
        device: torch.device | str = "cpu",
        num_slots: int | None = None,
        note: NoteStep = note_step,
    ) -> None:
        self._note = note
        self.padding = settings.max_num_seqs
        self.held: dict[int, Held] = {}
        self.bounds = Bounds(settings.max_num_seqs + 1)
        self.device = torch.device(device)
        self._stages = tuple(stages)
        declared = [column for stage in self._stages for column in stage.columns]
        names = [column.name for column in declared]
        assert len(set(names)) == len(names), f"two sampling columns share a name: {sorted(names)}"

        base = (
            Column("computed", dtype=torch.int32),
            Column("num_drafts", dtype=torch.int32),
            Column("last_token", dtype=torch.int64),
            Column("slot", dtype=torch.int64),
            Column("drafts", (settings.num_speculative_tokens,), torch.int64),
        )
        tables = tuple(Column(f"blocks.{group}", (width,), torch.int32) for group, width in enumerate(table_widths))
        num_rows = settings.max_num_seqs + 1
        self._regions, num_words = _lay_out((*base, *(c for c in declared if c.place is Place.ROW), *tables), num_rows)
        self._memory = torch.zeros(num_words, dtype=torch.int32, device=self.device)
        self._record_columns = [name for name in self._regions if not name.startswith("blocks.")]
        self._fresh, self._record_at, self._record_step = self._make_record()

        self.columns: dict[str, torch.Tensor] = {
            name: _view(self._memory, region, num_rows) for name, region in self._regions.items()
        }
        for name in self._record_columns:
            self.columns[name].fill_(self._regions[name].column.default)
        self.computed = self.columns["computed"]  # [R] int32: tokens whose KV is written
        self.num_drafts = self.columns["num_drafts"]  # [R] int32
        self.last_token = self.columns["last_token"]  # [R] int64: sampled last, not yet fed
        self.drafts = self.columns["drafts"]  # [R, K] int64
        self.slots = self.columns["slot"]  # [R] int64
        self.block_tables = tuple(self.columns[column.name] for column in tables)  # [R, width] int32 per group

        slots = settings.max_num_seqs if num_slots is None else num_slots
        self._free_slots = list(range(slots, 0, -1))
        self._slot_columns = [c for c in declared if c.place is Place.SLOT]
        self.pools: dict[str, torch.Tensor] = {
            c.name: _pool((slots + 1, *c.shape), c, self.device) for c in self._slot_columns
        }
        self.ragged: dict[str, dict[int, torch.Tensor]] = {c.name: {} for c in declared if c.place is Place.RAGGED}

    @property
    def num_bytes(self) -> int:
        return self._memory.nbytes + sum(pool.nbytes for pool in self.pools.values())

    def apply(self, plan: Plan) -> None:
        """Take over a plan's news: retired rows, admitted rows, grown tables. The host waits for nothing."""
        self.bounds.follow(plan)
        for row in plan.retired:
            self._release(row)
        if not (plan.admitted or plan.grown or plan.newest):
            return
        news = _News()
        for admission in plan.admitted:
            self._admit(admission, news)
        for growth in plan.grown:
            self._grow(growth, news)
        if plan.newest:
            self._tell(plan.newest, news)
        self._write(news)

    def record(self, batch: Batch, sampled: Sampled) -> None:
        """Note on the device that the batch was computed and what it sampled. Fixed shapes, no host: a graph can capture it."""
        if sampled.refused is not None:
            self.computed.index_add_(0, sampled.rows, sampled.refused, alpha=-1)
        self._note(self.computed, self.last_token, batch.rows, batch.starts, sampled.rows, sampled.newest, self.padding)

    def _admit(self, admission: Admission, news: _News) -> None:
        row = admission.row
        assert row in range(self.padding), f"there is no row {row}"
        assert row not in self.held, f"row {row} is held already"
        wanted = tuple(stage for stage in self._stages if stage.wants(admission.params))
        values: dict[str, Any] = {"computed": admission.computed, "last_token": admission.tokens[-1]}
        for stage in wanted:
            values.update(stage.fill(admission))
        slot = self._fill_slot(values) if any(c.name in values for c in self._slot_columns) else 0
        values["slot"] = slot
        for name, by_row in self.ragged.items():
            if name in values:
                by_row[row] = torch.as_tensor(values[name]).to(self.device)
        self.held[row] = Held(admission, wanted, slot)
        news.add(self._record_at + row * self._record_step, self._record(values))
        for group, blocks in enumerate(admission.blocks):
            if blocks:
                self._grow(Growth(row, group, 0, blocks), news)

    def _grow(self, growth: Growth, news: _News) -> None:
        region = self._regions[f"blocks.{growth.group}"]
        assert growth.first + len(growth.blocks) <= region.words, f"the block table of row {growth.row} is full"
        start = region.address + growth.row * region.words + growth.first
        news.add(np.arange(start, start + len(growth.blocks)), np.array(growth.blocks, np.int32))

    def _tell(self, newest: Sequence[tuple[int, int]], news: _News) -> None:
        """Tokens that another stage has sampled."""
        rows, tokens = np.array(newest, np.int64).T
        words = self._regions["last_token"].words
        addresses = self._regions["last_token"].address + words * rows[:, None] + np.arange(words)
        news.add(addresses.reshape(-1), np.ascontiguousarray(tokens).view(np.int32))

    def _release(self, row: int) -> None:
        held = self.held.pop(row)
        if held.slot:
            self._free_slots.append(held.slot)
        for by_row in self.ragged.values():
            by_row.pop(row, None)

    def _fill_slot(self, values: Mapping[str, Any]) -> int:
        assert self._free_slots, "more rows want vocabulary-wide columns than there are slots: the scheduler must limit them"
        slot = self._free_slots.pop()
        for column in self._slot_columns:
            pool = self.pools[column.name]
            if column.name in values:
                pool[slot].copy_(torch.as_tensor(values[column.name]))
            else:
                pool[slot].fill_(column.default)
        return slot

    def _write(self, news: _News) -> None:
        pairs = torch.from_numpy(np.stack((np.concatenate(news.addresses), np.concatenate(news.values).astype(np.int64))))
        if self.device.type == "cuda":
            pairs = pairs.pin_memory().to(self.device, non_blocking=True)  # the pinned block is reused only after the copy
        self._memory.scatter_(0, pairs[0], pairs[1].to(torch.int32))

    def _record(self, values: Mapping[str, Any]) -> np.ndarray:
        """The words of one row's columns: the defaults, and `values` where given."""
        record = self._fresh.copy()
        for name in self._record_columns:
            if name in values:
                region = self._regions[name]
                record[region.record].view(_NUMPY[region.column.dtype])[:] = np.asarray(values[name]).reshape(-1)
        return record

    def _make_record(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One row's default words, their addresses in row 0, and by how much each moves from row to row."""
        words, at, step = [], [], []
        for name in self._record_columns:
            region = self._regions[name]
            count = int(np.prod(region.column.shape))
            words.append(np.full(count, region.column.default, _NUMPY[region.column.dtype]).view(np.int32))
            at.append(region.address + np.arange(region.words))
            step.append(np.full(region.words, region.words))
        return np.concatenate(words), np.concatenate(at), np.concatenate(step)


def _lay_out(columns: Sequence[Column], num_rows: int) -> tuple[dict[str, _Region], int]:
    regions: dict[str, _Region] = {}
    address = record = 0
    for column in columns:
        assert column.dtype in _NUMPY, f"column {column.name}: rows hold int32, int64 and float32, not {column.dtype}"
        words = int(np.prod(column.shape)) * column.dtype.itemsize // 4
        regions[column.name] = _Region(column, address, words, slice(record, record + words))
        address += -(-num_rows * words // _ALIGN_WORDS) * _ALIGN_WORDS
        record += words
    return regions, address


def _pool(shape: tuple[int, ...], column: Column, device: torch.device) -> torch.Tensor:
    """Room for a column as wide as the vocabulary, [slots, ...]; zeros that nobody wrote take no memory on a CPU."""
    return torch.full(shape, column.default, dtype=column.dtype, device=device) if column.default else zeros(shape, column.dtype, device)


def _view(memory: torch.Tensor, region: _Region, num_rows: int) -> torch.Tensor:
    part = memory[region.address : region.address + num_rows * region.words]
    return part.view(region.column.dtype).view(num_rows, *region.column.shape)
