"""The batch of a plan: what the host knows and what the rows hold end up at the right places."""

from __future__ import annotations

import pytest
import torch

from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Growth, Plan, Slice
from octavo.types import SamplingParams
from octavo.worker.batch import BatchBuilder, padded_sizes
from octavo.worker.rows import Rows

SETTINGS = Resolved(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, num_speculative_tokens=2)
BLOCK_TOKENS = (4, 8)


def make():
    device = torch.device("cpu")
    return Rows(SETTINGS, (16, 8), (), device), BatchBuilder(SETTINGS, BLOCK_TOKENS, device)


def admit(row: int, tokens, computed: int, blocks) -> Admission:
    return Admission(row, row + 1, SamplingParams(), 0, tuple(tokens), len(tokens), computed, blocks)


def test_a_mixed_batch():
    rows, batches = make()
    prompt = tuple(range(10, 17))
    plan = Plan(
        1,
        slices=(Slice(2, 3, 3, 0, True, prompt[4:]), Slice(0, 1, 3, 2, True)),
        admitted=(admit(2, prompt, 4, ((5,), ())), admit(0, (1, 2, 99), 2, ((7,), (3,)))),
        grown=(Growth(2, 0, 1, (9,)), Growth(2, 1, 0, (6,)), Growth(0, 0, 1, (8,))),
    )
    rows.apply(plan)
    rows.drafts[0] = torch.tensor([41, 42])
    rows.num_drafts[0] = 1
    batch = batches.build(plan, rows)
    assert batch.tokens.tolist()[:5] == [14, 15, 16, 99, 41]
    assert batch.positions.tolist() == [4, 5, 6, 2, 3, 4]
    assert batch.starts.tolist() == [0, 3, 6]
    assert batch.lengths.tolist() == [7, 5]
    assert batch.rows.tolist() == [2, 0]
    assert batch.slots[0].tolist() == [36, 37, 38, 30, 31, -1], "the second draft was not there after all"
    assert batch.slots[1].tolist() == [6 * 8 + 4, 6 * 8 + 5, 6 * 8 + 6, 3 * 8 + 2, 3 * 8 + 3, -1]
    assert batch.sample_at.tolist() == [2, 5]
    assert batch.sample_rows.tolist() == [2, 0]
    assert (batch.num_tokens, batch.num_slices, batch.max_count, batch.max_length) == (6, 2, 3, 7)


@pytest.mark.parametrize(
    ("computed", "counts", "fresh", "max_old_count"),
    [
        ((0, 0), (3, 4), (3, 4), 0),
        ((2, 0), (1, 5), (5,), 1),
        ((0, 2, 0), (6, 1, 2), (2,), 6),
        ((4, 1), (2, 1), (), 2),
        ((0, 3), (1, 1), (), 1),
    ],
)
def test_which_slices_at_the_end_are_fresh(computed, counts, fresh, max_old_count):
    rows, batches = make()
    admitted = tuple(admit(row, range(16), done, ((row + 1,), (row + 1,))) for row, done in enumerate(computed))
    slices = tuple(Slice(row, row + 1, count, 0, True, (7,) * count) for row, count in enumerate(counts))
    plan = Plan(1, slices, admitted)
    rows.apply(plan)
    batch = batches.build(plan, rows)
    assert (batch.fresh, batch.max_old_count) == (fresh, max_old_count)
    again = Plan(2, tuple(Slice(piece.row, piece.generation, 1, 0, True) for piece in slices))
    rows.apply(again)
    assert batches.build(again, rows).fresh == (), "a context that began in an earlier step"


def test_the_same_buffers_serve_every_step():
    rows, batches = make()
    first = Plan(1, slices=(Slice(1, 1, 2, 0, True, (3, 4)),), admitted=(admit(1, (3, 4), 0, ((5,), (2,))),))
    rows.apply(first)
    before = batches.build(first, rows)
    rows.computed[1] = 2
    rows.last_token[1] = 77
    second = Plan(2, slices=(Slice(1, 1, 1, 0, True),))
    rows.apply(second)
    after = batches.build(second, rows)
    assert after.tokens.tolist() == [77]
    assert after.positions.tolist() == [2]
    assert after.max_length == 3
    for name in ("tokens", "positions", "lengths", "starts", "rows", "slots"):
        assert getattr(after, name).data_ptr() == getattr(before, name).data_ptr(), name


def test_a_decode_step_needs_nothing_from_the_host():
    """`decode` gives the batch that `build` gives, and padding rows nothing."""
    rows, batches = make()
    admitted = (admit(1, (3, 4, 5), 0, ((5,), (2,))), admit(3, (6, 7), 0, ((4,), (1,))))
    rows.apply(Plan(1, admitted=admitted))
    rows.computed[1], rows.last_token[1] = 3, 77
    rows.computed[3], rows.last_token[3] = 2, 88
    plan = Plan(2, slices=(Slice(3, 2, 1, 0, True), Slice(1, 1, 1, 0, True)))
    names = ("tokens", "positions", "starts", "lengths", "rows", "slots", "sample_at", "sample_rows")
    built = batches.build(plan, rows)
    expected = {name: getattr(built, name).clone() for name in names}
    got = batches.decode(torch.tensor([3, 1, rows.padding]), rows, 64)
    for name in names:
        value = getattr(got, name)
        size = len(expected[name][0]) if name == "slots" else len(expected[name])
        assert torch.equal(value[..., :size], expected[name]), name
    assert got.slots[:, 2].tolist() == [-1, -1]
    assert got.lengths[2] == 0


def test_padding_to_sizes_that_were_used_before():
    device = torch.device("cpu")
    settings = Resolved(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, graph_sizes=(1, 4))
    rows, batches = Rows(settings, (16, 8), (), device), BatchBuilder(settings, BLOCK_TOKENS, device)
    tokens = tuple(range(20, 23))
    plan = Plan(1, (Slice(1, 2, 2, 0, True, tokens[:2]), Slice(3, 4, 1, 0, True, tokens[2:])), (
        admit(1, tokens[:2], 0, ((5,), (2,))), admit(3, tokens[2:], 0, ((6,), (3,))),
    ))  # fmt: skip
    rows.apply(plan)
    batch = batches.build(plan, rows)
    assert batch.tokens.tolist() == [20, 21, 22, 0]
    assert batch.positions.tolist() == [0, 1, 0, 0]
    assert batch.slots.tolist() == [[20, 21, 24, -1], [16, 17, 24, -1]], "padding is written nowhere"
    assert (batch.starts.tolist(), batch.lengths.tolist(), batch.rows.tolist()) == ([0, 2, 3], [2, 1], [1, 3])
    assert (batch.num_tokens, batch.num_slices) == (3, 2)
    assert batch.sample_at.tolist() == [1, 2, 0, 0]
    assert batch.sample_rows.tolist() == [1, 3], "padding is sampled for nobody"


@pytest.mark.parametrize(("sizes", "most", "padded"), [
    ((), 64, ()), ((1, 2, 512), 256, (1, 2, 130)), ((1, 512), 1024, (1, 512, 640, 768, 896, 1024)),
])  # fmt: skip
def test_sizes(sizes, most, padded):
    assert padded_sizes(Resolved(max_num_seqs=most, graph_sizes=sizes)) == padded
