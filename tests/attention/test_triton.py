"""The Triton kernels against the reference in Triton's interpreter; over those of models: tests/gpu/test_attention.py."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from octavo.attention import cudnn
from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention, attend
from octavo.attention.triton import PieceTuning, TileTuning, TritonAttention, Tuning, list_pieces
from octavo.ops.kv_format import COMPRESSED, compressed
from octavo.ops.room import token_room
from tests.attention.kv_memory import memory
from tests.attention.test_reference import make_batch
from tests.interpreter import interpret

pytestmark = pytest.mark.skipif(not interpret(), reason="in the interpreter")

SMALL = Tuning(PieceTuning(programs=3, shortest=16, block_n=16), TileTuning(block_m=16, block_n=16, num_warps=4))
DECODES = [(2, 1, 40), (0, 1, 5), (3, 1, 70), (1, 1, 1), (4, 1, 16)]  # row, count, length
FEW = [(2, 2, 40), (0, 2, 2), (3, 1, 50)]
MIXED = [(2, 1, 35), (0, 19, 19), (3, 18, 45), (4, 2, 30)]


def compare(slices, shape, block_tokens, dtype, tuning=SMALL, padding=0, device="cpu", atol=2e-3, num_fresh=0, kv_dtype=None, sinks=None):
    """Outputs of both backends over memory in which whatever must not be read is NaN."""
    rng = random.Random(block_tokens)
    batch = make_batch(slices, padding)
    old, fresh = slices[: len(slices) - num_fresh], slices[len(slices) - num_fresh :]
    slots = torch.full((1, batch.num_tokens + padding), -1)
    batch = replace(batch, slots=slots, fresh=tuple(count for _, count, _ in fresh), max_old_count=max((c for _, c, _ in old), default=0))
    width = -(-max(length for *_, length in slices) // block_tokens)
    blocks = list(range(1, 1 + 5 * width))
    rng.shuffle(blocks)
    table = torch.tensor(blocks, dtype=torch.int32).view(5, width)
    num_blocks, scales = 1 + 5 * width, None
    kv = torch.full((num_blocks, 2, block_tokens, shape.kv_heads, shape.head_dim), float("nan"), dtype=dtype)
    for row, _, length in slices:
        for p in range(length):
            kv[table[row, p // block_tokens], :, p % block_tokens] = torch.randn(2, shape.kv_heads, shape.head_dim).to(dtype)
    for (row, count, length), start in zip(slices, batch.starts.tolist()):
        slots[0, start : start + count] = torch.tensor(
            [int(table[row, p // block_tokens]) * block_tokens + p % block_tokens for p in range(length - count, length)]
        )
    if kv_dtype is not None:
        keeper = memory(kv_dtype, num_blocks, block_tokens, shape.kv_heads, shape.head_dim)
        kv, scales = compress_into(keeper, kv), keeper.kv_scales
    num_tokens = batch.num_tokens + padding
    wide = torch.randn(token_room(num_tokens), shape.heads + 2, shape.head_dim).to(dtype)  # q may be a view of a packed product
    q = wide[:num_tokens, : shape.heads]
    reference, backend = ReferenceAttention(), TritonAttention(tuning, use_cudnn=True)
    known = kv if scales is not None else kv.float()
    want = reference.run(reference.plan(batch, 0, table, block_tokens), q.float(), known, shape, scales, sinks)
    batch = type(batch)(**{name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(batch).items()})
    wide = wide.to(device)
    q, kv, scales = wide[:num_tokens, : shape.heads], kv.to(device), scales if scales is None else scales.to(device)
    plan = backend.plan(batch, 0, table.to(device), block_tokens)
    for _ in range(2):  # the second layer finds the work listed, and the counters as they must be
        got = backend.run(plan, q, kv, shape, scales, None if sinks is None else sinks.to(device))
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().float(), want, atol=atol, rtol=atol)
    assert not got[batch.num_tokens :].any()


def compress_into(keeper, kv):
    """Fill the keeper's memory with kv; where that has none, with what would show if it were read."""
    stored, new = compressed(kv.transpose(1, 2), keeper.kv.dtype, keeper.kv_scales)  # [num_blocks, block_tokens, 2, kv_heads, ...]
    keeper.kv.copy_(stored.transpose(1, 2))
    if new is not None:
        keeper.kv_scales.copy_(new.transpose(1, 2))
    return keeper.kv


@pytest.mark.parametrize("slices", [DECODES, FEW, MIXED], ids=["decodes", "few", "mixed"])
@pytest.mark.parametrize("window", [None, 11])
def test_sinks_take_their_part_of_the_weight(slices, window):
    torch.manual_seed(0)
    shape = AttentionShape(6, 2, 16, 0.3, window)
    compare(slices, shape, 8, torch.float32, sinks=torch.tensor([-30.0, -1.0, 0.0, 1.0, 3.0, 200.0]))
    compare(slices, shape, 8, torch.float16, padding=3, sinks=torch.randn(6))


@pytest.mark.parametrize("slices", [DECODES, FEW, MIXED], ids=["decodes", "few", "mixed"])
@pytest.mark.parametrize("kv_dtype", sorted(COMPRESSED))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block_tokens"), [(4, 2, 24, 8), (3, 1, 32, 16)])
def test_compressed_memory(slices, kv_dtype, heads, kv_heads, head_dim, block_tokens):
    torch.manual_seed(0)
    compare(slices, AttentionShape(heads, kv_heads, head_dim, 0.3), block_tokens, torch.float16, kv_dtype=kv_dtype, padding=1)
    compare(slices, AttentionShape(heads, kv_heads, head_dim, 0.3, 20, 5.0), block_tokens, torch.float32, kv_dtype=kv_dtype, atol=1e-5)


@pytest.mark.parametrize("slices", [DECODES, FEW, MIXED], ids=["decodes", "few", "mixed"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_tokens"), [(2, 2, 16, 8), (4, 2, 64, 16), (3, 1, 32, 32), (4, 1, 24, 64), (8, 1, 16, 128)]
)
def test_heads_and_blocks(slices, heads, kv_heads, head_dim, block_tokens):
    torch.manual_seed(0)
    compare(slices, AttentionShape(heads, kv_heads, head_dim, 0.3), block_tokens, torch.float16, padding=2)


@pytest.mark.parametrize("slices", [DECODES, FEW, MIXED], ids=["decodes", "few", "mixed"])
@pytest.mark.parametrize(("window", "softcap"), [(1, None), (20, None), (None, 2.0), (7, 1.5), (1000, None)])
def test_windows_and_softcap(slices, window, softcap):
    torch.manual_seed(0)
    compare(slices, AttentionShape(4, 2, 16, 0.5, window, softcap), 8, torch.float32, padding=1, atol=1e-5)


@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_wide_heads(head_dim):
    torch.manual_seed(0)
    for slices in (DECODES[:3], MIXED[:2]):
        compare(slices, AttentionShape(4, 2, head_dim, head_dim**-0.5), 16, torch.float16)


def test_many_more_heads_than_rows_of_a_product():
    torch.manual_seed(0)
    compare([(2, 1, 40), (0, 3, 20)], AttentionShape(24, 1, 16, 0.3), 16, torch.float32, atol=1e-5)


def test_a_bound_far_above_the_lengths_changes_nothing():
    torch.manual_seed(0)
    shape, backend = AttentionShape(2, 1, 16, 0.3), TritonAttention(SMALL)
    batch = make_batch(DECODES)
    table, kv, q = torch.zeros(5, 2600, dtype=torch.int32), torch.randn(1, 2, 16, 1, 16), torch.randn(5, 2, 16)
    near = backend.run(backend.plan(batch, 0, table, 16), q, kv, shape)
    captured = type(batch)(**{**vars(batch), "max_length": 40960})
    assert torch.equal(backend.run(backend.plan(captured, 0, table, 16), q, kv, shape), near)


def ragged(q, k, v, starts, longest, scale):
    """In place of cuDNN: each sequence by itself, with nothing of what lies outside."""
    out = torch.full_like(q, float("nan"))
    for start, end in pairwise(starts.tolist()):
        assert end - start <= longest
        visible = torch.ones(end - start, end - start, dtype=torch.bool).tril()
        shape = AttentionShape(q.shape[1], k.shape[1], q.shape[2], scale)
        out[start:end] = attend(q[start:end], k[start:end], v[start:end], visible, shape)
    return out


@pytest.fixture
def no_small_work(monkeypatch):
    monkeypatch.setattr(cudnn, "WORTH_FLOP", 0)


@pytest.fixture
def calls(monkeypatch, no_small_work):
    """The numbers of sequences that were left to cuDNN."""
    calls = []
    monkeypatch.setattr(cudnn, "available", lambda device: True)
    monkeypatch.setattr(cudnn, "ragged", lambda *args: calls.append((args[3].diff() > 0).sum().item()) or ragged(*args))
    return calls


@pytest.mark.parametrize("slices", [[(2, 9, 9), (0, 19, 19)], [(2, 1, 35), (1, 3, 20), (0, 19, 19), (3, 1, 1)], [(2, 18, 35), (0, 7, 7)]])
def test_fresh_prompts_go_to_cudnn(slices, calls):
    torch.manual_seed(0)
    num_fresh = sum(count == length for _, count, length in slices)
    for heads, kv_heads in ((4, 2), (3, 3)):
        compare(slices, AttentionShape(heads, kv_heads, 16, 0.3), 8, torch.float16, num_fresh=num_fresh)
    compare(slices, AttentionShape(2, 1, 16, 0.3, window=19), 8, torch.float16, num_fresh=num_fresh)
    assert calls == [num_fresh] * 6


@pytest.mark.parametrize("kv_dtype", sorted(COMPRESSED))
def test_cudnn_is_given_what_was_compressed(kv_dtype, calls):
    torch.manual_seed(0)
    slices = [(2, 1, 35), (0, 19, 19)]
    compare(slices, AttentionShape(2, 1, 16, 0.3), 8, torch.float16, num_fresh=1, kv_dtype=kv_dtype)
    assert calls == [1, 1]


def test_what_cudnn_cannot_do(calls):
    torch.manual_seed(0)
    slices = [(2, 1, 35), (0, 19, 19)]
    compare(slices, AttentionShape(2, 1, 16, 0.3, window=18), 8, torch.float16, num_fresh=1)
    compare(slices, AttentionShape(2, 1, 16, 0.3, softcap=2.0), 8, torch.float16, num_fresh=1)
    compare(slices, AttentionShape(2, 1, 16, 0.3), 8, torch.float32, num_fresh=1)
    compare(slices, AttentionShape(2, 1, 16, 0.3), 8, torch.float16)
    assert not calls


def test_cudnn_gives_up(calls, monkeypatch, caplog):
    torch.manual_seed(0)

    def refuse(*args):
        raise RuntimeError("no valid plan")

    monkeypatch.setattr(cudnn, "ragged", refuse)
    compare([(2, 1, 35), (0, 19, 19)], AttentionShape(2, 1, 16, 0.3), 8, torch.float16, num_fresh=1)
    assert [record.message for record in caplog.records] == ["prompts are attended without cuDNN from now on: no valid plan"]


def test_ragged_calls_have_few_shapes():
    def shapes(counts):
        batch = replace(make_batch([(0, count, count) for count in counts]), fresh=tuple(counts))
        found = cudnn.prompts(batch)
        assert found.starts[: len(counts) + 1].tolist() == batch.starts.tolist()
        assert set(found.starts[len(counts) :].tolist()) == {batch.num_tokens}
        return token_room(batch.num_tokens), found.longest, found.starts.numel() - 1

    assert shapes([4096] * 4) == shapes([4095] * 4) == shapes([2100, 4096, 3000, 4000]) == (16384, 4096, 8)
    assert shapes([100, 30]) == (130, 1024, 2)
    assert shapes([900] * 17) == (16384, 1024, 32)


def test_the_invariant_backend_sends_every_slice_by_tiles():
    from octavo.attention.invariant import InvariantTriton

    torch.manual_seed(0)
    shape = AttentionShape(4, 2, 32, 0.2)
    for slices in (DECODES, MIXED, [(1, 0, 0), *DECODES]):
        batch = make_batch(slices, 0)
        table = torch.arange(1, 51, dtype=torch.int32).view(5, 10)
        kv, q = torch.randn(51, 2, 8, 2, 32), torch.randn(batch.num_tokens, 4, 32)
        reference, backend = ReferenceAttention(), InvariantTriton()
        want = reference.run(reference.plan(batch, 0, table, 8), q, kv, shape)
        got = backend.run(backend.plan(replace(batch, slots=torch.full((1, batch.num_tokens), -1)), 0, table, 8), q, kv, shape)
        torch.testing.assert_close(got, want, atol=2e-3, rtol=2e-3)


def test_a_padding_slice_gives_numbers_by_tiles():
    """In a captured step, slices of the padding row have one token and no context."""
    from octavo.attention.invariant import InvariantTriton

    batch = replace(make_batch([(0, 1, 5), (1, 1, 1)], 0), slots=torch.full((1, 2), -1))
    batch.lengths[1] = 0
    table, kv, q = torch.zeros((5, 10), dtype=torch.int32), torch.randn(2, 2, 8, 1, 16), torch.randn(2, 2, 16)
    backend = InvariantTriton()
    assert backend.run(backend.plan(batch, 0, table, 8), q, kv, AttentionShape(2, 1, 16, 0.2)).isfinite().all()


def test_padding_is_shared_out_too():
    batch = make_batch([(0, 1, 30)] * 4 + [(0, 1, 0)] * 28, 0)
    pieces = list_pieces(batch, batch.num_tokens, AttentionShape(4, 2, 16, 0.3), few=1, programs=6, block_n=4, shortest=4)
    records, shares = pieces.records.tolist(), pieces.shares.tolist()
    empty = [sum(begin == end for *_, begin, end, _ in records[first:last]) for first, last in pairwise(shares)]
    assert sum(empty) == 28
    assert sum(count > 0 for count in empty) > 1
    assert max(empty) <= 4 * 7  # a share is 7 tiles: 4 slices of 8 and 7 for the empty ones, cut in 6
    assert sorted({token for parts, _, token, *_ in records if parts}) == list(range(32))


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("each", [True, False], ids=["decodes", "mixed"])
def test_contexts_are_shared_out_evenly(window, each):
    rng = random.Random(3)
    slices = [(0, 1 if each else rng.choice([1, 2, 5]), rng.randint(5, 90)) for _ in range(7)] + [(0, 1, 0)]
    batch, shape = make_batch(slices, 0), AttentionShape(4, 2, 16, 0.3, window)
    few, programs, block_n = (1 if each else 2), 5, 4
    for shortest in (4, 60):
        pieces = list_pieces(batch, batch.num_tokens, shape, few, programs, block_n, shortest)
        shares = pieces.shares.tolist()
        records = [record for record in pieces.records.tolist() if record[0]]
        assert shares[0] == 0
        assert shares[-1] == len(records)
        tiles = [
            sum(-(-end // block_n) - begin // block_n for *_, begin, end, _ in records[first:last] if end > begin)
            for first, last in pairwise(shares)
        ]
        total = sum(tiles)
        share = max(-(-total // programs), -(-shortest // block_n))
        assert [count for count in tiles if count] == [share] * (total // share) + [total % share] * (total % share > 0)
        at = iter(records)
        for (_, count, length), start in zip(slices, batch.starts.tolist()):
            if count > few:
                continue
            reached = first = max(length - count + 1 - window, 0) if window else 0
            parts = next(record[0] for record in records if record[2] == start)
            for part in range(parts):
                found = next(at)
                assert found[:4] == [parts, part, start, count]
                assert found[7] == length - count
                if length:
                    assert found[5] == reached
                    assert found[6] > found[5]
                    reached = found[6]
            assert reached == max(length, first)
        assert next(at, None) is None

