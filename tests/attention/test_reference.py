"""The reference against attention written out key by key in float64."""

import math
import random
from itertools import pairwise

import pytest
import torch

from octavo.attention import reference
from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention
from octavo.context import Batch


def make_batch(slices, padding=0):
    """slices: (row, count, length)."""
    starts = [0]
    for _, count, _ in slices:
        starts.append(starts[-1] + count)
    num_tokens = starts[-1] + padding
    none = torch.zeros(num_tokens, dtype=torch.int64)
    return Batch(
        tokens=none, positions=none, starts=torch.tensor(starts + [starts[-1]] * padding, dtype=torch.int32),
        lengths=torch.tensor([length for *_, length in slices] + [0] * padding, dtype=torch.int32),
        rows=torch.tensor([row for row, *_ in slices] + [0] * padding, dtype=torch.int32),
        slots=none[None], sample_at=none, sample_rows=none,
        num_tokens=starts[-1], num_slices=len(slices), max_count=max(c for _, c, _ in slices), max_length=max(n for *_, n in slices),
    )  # fmt: skip


def slow(q, keys, values, shape, position):
    """One query [heads, head_dim] at a position over keys and values [length, kv_heads, head_dim]."""
    out = torch.empty_like(q, dtype=torch.float64)
    oldest = 0 if shape.window is None else max(0, position - shape.window + 1)
    for h in range(shape.heads):
        g = h // (shape.heads // shape.kv_heads)
        scores = [shape.scale * float(q[h].double() @ keys[j, g].double()) for j in range(oldest, position + 1)]
        if shape.softcap is not None:
            scores = [shape.softcap * math.tanh(score / shape.softcap) for score in scores]
        weights = [math.exp(score - max(scores)) for score in scores]
        out[h] = sum(w * values[oldest + j, g].double() for j, w in enumerate(weights)) / sum(weights)
    return out


def test_a_sink_is_a_key_without_a_value():
    shape = AttentionShape(2, 1, 8, 0.5)
    table, kv, q = torch.tensor([[0]], dtype=torch.int32), torch.randn(1, 2, 4, 1, 8), torch.randn(1, 2, 8)
    backend, sinks = ReferenceAttention(), torch.tensor([0.3, 1.7])
    plan = backend.plan(make_batch([(0, 1, 3)]), 0, table, 4)
    scores = 0.5 * q[0] @ kv[0, 0, :3, 0].T  # [heads, 3]
    weights = scores.exp() / (scores.exp().sum(-1) + sinks.exp()).unsqueeze(-1)
    torch.testing.assert_close(backend.run(plan, q, kv, shape, None, sinks)[0], weights @ kv[0, 1, :3, 0])


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "softcap"), [(4, 4, None), (6, 2, 2.0), (3, 1, None)])
def test_mixed_batches(block_tokens, window, heads, kv_heads, softcap):
    torch.manual_seed(0)
    rng = random.Random(block_tokens)
    shape = AttentionShape(heads, kv_heads, 8, 0.4, window, softcap)
    slices = [(2, 1, 9), (0, 5, 5), (3, 4, 17), (1, 1, 1)]
    batch = make_batch(slices, padding=2)
    width = -(-17 // block_tokens)
    blocks = list(range(4 * width))
    rng.shuffle(blocks)
    table = torch.tensor(blocks, dtype=torch.int32).view(4, width)
    kv = torch.full((4 * width, 2, block_tokens, kv_heads, 8), float("nan"))
    text = {}
    for row, _, length in slices:
        text[row] = torch.randn(2, length, kv_heads, 8)
        for p in range(length):
            if window is None or p > length - 1 - batch.max_count - window:  # older tokens of a window may be gone
                kv[table[row, p // block_tokens], :, p % block_tokens] = text[row][:, p]
    q = torch.randn(13, heads, 8)
    backend = ReferenceAttention()
    out = backend.run(backend.plan(batch, 0, table, block_tokens), q, kv, shape)
    assert out.isfinite().all()
    for (row, count, length), (start, end) in zip(slices, pairwise(batch.starts[:5].tolist())):
        for i in range(start, end):
            expected = slow(q[i], *text[row], shape, length - count + i - start)
            torch.testing.assert_close(out[i].double(), expected, atol=1e-5, rtol=1e-5)


def test_stale_blocks_before_a_window_are_not_read():
    shape = AttentionShape(2, 1, 8, 1.0, 4)
    table = torch.tensor([[-1, -1, 0, 1]], dtype=torch.int32)  # entries of returned blocks may hold anything
    kv = torch.randn(2, 2, 4, 1, 8)
    backend = ReferenceAttention()
    out = backend.run(backend.plan(make_batch([(0, 1, 14)]), 0, table, 4), torch.randn(1, 2, 8), kv, shape)
    assert out.isfinite().all()


def test_what_is_alike_goes_together_and_long_slices_in_parts(monkeypatch):
    torch.manual_seed(0)
    shape, backend, table = AttentionShape(4, 2, 8, 0.4), ReferenceAttention(), torch.arange(24, dtype=torch.int32).view(4, 6)
    kv, q = torch.randn(24, 2, 4, 2, 8), torch.randn(24, 4, 8)
    batch = make_batch([(2, 10, 21), (0, 10, 21), (3, 3, 3), (1, 1, 24)])
    whole = backend.plan(batch, 0, table, 4)
    assert [part.rows.tolist() for part in whole.parts] == [[2, 0], [3], [1]]
    expected = backend.run(whole, q, kv, shape)
    monkeypatch.setattr(reference, "MOST_TOKENS", 4)
    monkeypatch.setattr(reference, "PAIRS_A_KEY", 1)
    for most_pairs, parts in ((1000, [(4, 15, 2), (4, 19, 2), (2, 21, 2), (3, 3, 1), (1, 24, 1)]), (70, [(3, 14, 1), (3, 14, 1)])):
        monkeypatch.setattr(reference, "MOST_PAIRS", most_pairs)
        cut = backend.plan(batch, 0, table, 4)
        assert [(part.count, part.length, len(part.rows)) for part in cut.parts][: len(parts)] == parts
        torch.testing.assert_close(backend.run(cut, q, kv, shape), expected, atol=1e-6, rtol=1e-6)
