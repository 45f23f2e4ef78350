"""Rows hold what a plan says, release it, and follow a batch on the device."""

import numpy as np
import pytest
import torch

from octavo.config.resolved import Resolved
from octavo.context import Batch
from octavo.core.plan import Admission, Growth, Plan
from octavo.sampling.sampled import Sampled
from octavo.sampling.stage import Column, Place
from octavo.types import SamplingParams
from octavo.worker.rows import Rows


class Probe:
    """Declares a column of every kind; wanted by rows with a seed."""

    columns = (
        Column("number", default=0.5),
        Column("wide", (3,), torch.int64, default=-1),
        Column("counts", (10,), torch.int32, place=Place.SLOT),
        Column("words", place=Place.RAGGED),
    )

    def wants(self, params):
        return params.seed is not None

    def fill(self, admission):
        seed = admission.params.seed
        return {"number": seed + 0.25, "wide": np.arange(3) + (seed << 40), "counts": np.full(10, seed), "words": np.arange(seed)}


def admission(row, seed=None, computed=0, blocks=((), ())):
    tokens = (5, 6, 7)
    return Admission(row, 0, SamplingParams(seed=seed), 0, tokens, len(tokens), computed, blocks)


def make_rows(max_num_seqs=4, **more):
    return Rows(Resolved(max_num_seqs=max_num_seqs, num_speculative_tokens=2), (6, 3), (Probe(),), **more)


def batch_of(rows, counts):
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int64)
    return Batch(empty, empty, starts, starts[1:], torch.tensor(rows, dtype=torch.int32), empty, empty, empty, 0, 0, 0, 0)


def test_admitted_row_holds_everything_and_its_neighbours_nothing():
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(2, seed=3, computed=16, blocks=((9, 8), (7,))),)))
    assert rows.computed.tolist() == [0, 0, 16, 0, 0]
    assert rows.last_token.tolist() == [0, 0, 7, 0, 0]
    assert rows.block_tables[0][2].tolist() == [9, 8, 0, 0, 0, 0]
    assert rows.block_tables[1][2].tolist() == [7, 0, 0]
    assert rows.block_tables[0][[0, 1, 3, 4]].sum() == 0
    assert rows.columns["number"].tolist() == [0.5, 0.5, 3.25, 0.5, 0.5]
    assert rows.columns["wide"].tolist() == [[-1] * 3] * 2 + [[(3 << 40) + i for i in range(3)]] + [[-1] * 3] * 2
    assert rows.pools["counts"][rows.slots[2]].tolist() == [3] * 10
    assert rows.pools["counts"][rows.slots[1]].tolist() == [0] * 10
    assert rows.ragged["words"][2].tolist() == [0, 1, 2]


def test_row_taken_again_starts_from_the_defaults():
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(1, seed=3, computed=8),)))
    rows.num_drafts[1] = 2
    rows.apply(Plan(1, retired=(1,), admitted=(admission(1),)))
    assert rows.columns["number"][1] == 0.5
    assert rows.columns["wide"][1].tolist() == [-1] * 3
    assert (rows.computed[1], rows.num_drafts[1], rows.slots[1]) == (0, 0, 0)
    assert rows.ragged["words"] == {}


def test_slots_are_returned_and_filled_anew():
    rows = make_rows(num_slots=1)
    for seed in (3, 4):
        rows.apply(Plan(0, admitted=(admission(0, seed=seed),)))
        assert rows.pools["counts"][rows.slots[0]].tolist() == [seed] * 10
        rows.apply(Plan(1, retired=(0,)))
    rows.apply(Plan(2, admitted=(admission(0, seed=1), admission(1))))
    with pytest.raises(AssertionError, match="slots"):
        rows.apply(Plan(3, admitted=(admission(2, seed=1),)))


def test_tables_grow_where_the_plan_says():
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(0, blocks=((1,), ())), admission(3))))
    rows.apply(Plan(1, grown=(Growth(0, 0, 1, (2, 3)), Growth(3, 1, 0, (4,)), Growth(0, 1, 0, (5,)))))
    assert rows.block_tables[0][0].tolist() == [1, 2, 3, 0, 0, 0]
    assert rows.block_tables[1].tolist() == [[5, 0, 0], [0, 0, 0], [0, 0, 0], [4, 0, 0], [0, 0, 0]]
    with pytest.raises(AssertionError, match="full"):
        rows.apply(Plan(2, grown=(Growth(0, 1, 2, (1, 1)),)))


def test_no_news_writes_nothing(monkeypatch):
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(0),)))
    writes = []
    monkeypatch.setattr(rows, "_write", writes.append)
    rows.apply(Plan(1))
    assert writes == []
    rows.apply(Plan(2, grown=(Growth(0, 0, 0, (1,)), Growth(0, 1, 0, (2,)))))
    assert len(writes) == 1


def test_record_follows_chunks_samples_and_padding():
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(0, computed=16), admission(1))))
    sampled = Sampled(torch.tensor([0, rows.padding]), torch.tensor([[42], [1]]), torch.zeros(2))
    rows.record(batch_of([0, 1, rows.padding], [1, 7, 0]), sampled)
    assert rows.computed.tolist() == [17, 7, 0, 0, 0]
    assert rows.last_token[:4].tolist() == [42, 7, 0, 0]


def test_record_takes_back_refused_drafts():
    rows = make_rows()
    rows.apply(Plan(0, admitted=(admission(0, computed=4), admission(1, computed=5))))
    sampled = Sampled(
        torch.tensor([0, 1]), torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.zeros(2),
        accepted=torch.tensor([3, 1]), refused=torch.tensor([0, 2], dtype=torch.int32),
    )
    rows.record(batch_of([0, 1], [3, 3]), sampled)
    assert rows.computed.tolist()[:2] == [7, 6]
    assert rows.last_token.tolist()[:2] == [3, 4]
