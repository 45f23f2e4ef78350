"""Triton twins against their torch references: in Triton's interpreter on CPU over small awkward shapes, on a GPU over real ones."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not on this machine")

from octavo.ops.embedding import embedding
from octavo.ops.gated import gelu_tanh_mul, silu_mul
from octavo.ops.note_step import note_step
from octavo.ops.rms_norm import add_rms_norm, rms_norm
from octavo.ops.rope_and_write import rope_and_write
from octavo.ops.triton import best as best_twin
from octavo.ops.triton import decode_batch as decode_batch_twin
from octavo.ops.triton import embedding as embedding_twin
from octavo.ops.triton import gated as gated_twin
from octavo.ops.triton import norm as norm_twin
from octavo.ops.triton import note_step as note_twin
from octavo.ops.triton import rope_and_write as rope_twin

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.bfloat16, torch.float32] if GPU else [torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    limit = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(found.float(), wanted.float(), atol=limit, rtol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n"), [(1, 16), (3, 576), (5, 1000)] + [(257, 4096)] * GPU)
def test_norms(rows, n, dtype):
    x, residual, weight = draw(rows, n, dtype=dtype), draw(rows, n, dtype=dtype), draw(n)
    close(norm_twin.rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))
    wide = draw(rows, 2 * n, dtype=dtype)
    close(norm_twin.rms_norm(wide[:, n:], weight, 1e-5), rms_norm(wide[:, n:], weight, 1e-5))
    close(norm_twin.rms_norm(x.view(rows, 2, -1), weight[: n // 2], 1e-5), rms_norm(x.view(rows, 2, -1), weight[: n // 2], 1e-5))
    wanted = add_rms_norm(x, residual, weight, 1e-6, 0.5)
    found = norm_twin.add_rms_norm(x, residual.clone(), weight, 1e-6, 0.5)
    close(found[0], wanted[0])
    close(found[1], wanted[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n"), [(1, 24), (2, 1536), (3, 1025)] + [(300, 14336)] * GPU)
def test_gates(rows, n, dtype):
    gate_up = draw(rows, 2 * n, dtype=dtype) * 2
    close(gated_twin.silu_mul(gate_up), silu_mul(gate_up))
    close(gated_twin.gelu_tanh_mul(gate_up), gelu_tanh_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype):
    weight = draw(50, 72, dtype=dtype)
    tokens = torch.tensor([0, 49, 13, 100, 60, 109], device=DEVICE)
    for first in (0, 60):
        assert torch.equal(embedding_twin.embedding(tokens, weight, first), embedding(tokens, weight, first))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotated", "norm"),
    [
        (9, 3, 64, 64, None),
        (4, 4, 32, None, None),
        (2, 1, 80, 32, None),
        (16, 8, 128, 128, "head"),
        (3, 1, 16, 16, "all"),
        (4, 2, 16, 8, "head"),
    ],
)
def test_rope_and_write(heads, kv_heads, head_dim, rotated, norm, dtype):
    num_tokens, block_tokens, num_blocks = 7, 4, 6
    qkv = draw(num_tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    kv = draw(num_blocks, 2, block_tokens, kv_heads, head_dim, dtype=dtype)
    slots = torch.randperm(num_blocks * block_tokens, device=DEVICE)[:num_tokens]
    slots[2] = -1
    positions = torch.randint(0, 90, (num_tokens,), device=DEVICE)
    cos_sin = None if rotated is None else draw(90, rotated)
    sizes = {None: (None, None), "head": (head_dim, head_dim), "all": (heads * head_dim, kv_heads * head_dim)}[norm]
    q_norm, k_norm = (None if size is None else draw(size) for size in sizes)
    mine, theirs = kv.clone(), kv.clone()
    wanted = rope_and_write(qkv, theirs, positions, slots, cos_sin, q_norm, k_norm, 1e-6)
    found = rope_twin.rope_and_write(qkv, mine, positions, slots, cos_sin, q_norm, k_norm, 1e-6)
    close(found, wanted)
    close(mine, theirs)
    untouched = torch.ones(num_blocks * block_tokens, dtype=torch.bool, device=DEVICE)
    untouched[slots[slots >= 0]] = False
    for half in range(2):
        before = kv[:, half].reshape(-1, kv_heads, head_dim)
        assert torch.equal(mine[:, half].reshape(-1, kv_heads, head_dim)[untouched], before[untouched])


def test_q_has_room(monkeypatch):
    monkeypatch.setattr(rope_twin, "token_room", lambda num_tokens: num_tokens + 5)
    kv, positions, slots = torch.zeros(1, 2, 4, 1, 16, device=DEVICE), torch.zeros(3, device=DEVICE).long(), torch.arange(3, device=DEVICE)
    q = rope_twin.rope_and_write(draw(3, 4 * 16), kv, positions, slots, None, None, None, 0.0)
    assert q.shape == (3, 2, 16)
    assert q.as_strided((8, 2, 16), q.stride()).shape == (8, 2, 16)


@pytest.mark.parametrize("vocab", [5, 4096, 9001])
def test_best(vocab):
    logits = draw(4, vocab + 3)[:, :vocab]
    logits[0, 3] = logits[0, 1] = 50.0  # the lowest id of equals
    logits[1, vocab - 1] = float("nan")
    logits[2] = -float("inf")
    tokens, peaks = best_twin.best(logits)
    assert tokens.tolist() == [1, vocab - 1, 0, int(logits[3].argmax())]
    assert peaks[0] == 50
    assert peaks[1].isnan()
    assert peaks[2] == -float("inf")
    assert peaks[3] == logits[3].max()


def test_note_step():
    padding = 140
    rows = torch.tensor([*torch.randperm(padding)[:131].tolist(), padding, padding], dtype=torch.int32, device=DEVICE)
    starts = torch.randint(1, 5, (134,), device=DEVICE).cumsum(0).int()
    starts[:3] = 0
    newest = torch.randint(0, 99, (131, 3), device=DEVICE)
    for num_sampled in (0, 5, 131):
        computed = torch.arange(padding + 1, dtype=torch.int32, device=DEVICE) % padding
        found, wanted = [(computed.clone(), torch.zeros(padding + 1, dtype=torch.int64, device=DEVICE)) for _ in range(2)]
        sampled = rows[:num_sampled].flip(0).long()
        note_twin.note_step(*found, rows, starts, sampled, newest[:num_sampled, -1], padding)
        note_step(*wanted, rows, starts, sampled, newest[:num_sampled, -1], padding)
        for one, other in zip(found, wanted):
            assert torch.equal(one, other)


def test_decode_batch():
    padding, block_tokens = 6, 4
    computed = torch.tensor([3, 0, 9, 5, 8, 1, 77], dtype=torch.int32, device=DEVICE)
    last_token = torch.arange(100, 107, device=DEVICE)
    table = torch.randint(0, 50, (7, 5), dtype=torch.int32, device=DEVICE)
    row_ids = torch.tensor([2, 4, 0, 6, 6], device=DEVICE)
    out = tuple(torch.full((5,), -9, dtype=dtype, device=DEVICE) for dtype in (torch.int64, torch.int64, torch.int32, torch.int32))
    slots = torch.full((5,), -9, device=DEVICE)
    decode_batch_twin.decode_batch(row_ids, computed, last_token, table, padding, block_tokens, out, slots, first=True)
    tokens, positions, lengths, rows = (value.tolist() for value in out)
    assert tokens[:3] == [102, 104, 100]
    assert positions == [9, 8, 3, 0, 0]
    assert lengths == [10, 9, 4, 0, 0]
    assert rows == [2, 4, 0, 6, 6]
    wanted = [int(table[row, at // 4]) * 4 + at % 4 for row, at in ((2, 9), (4, 8), (0, 3))]
    assert slots.tolist() == [*wanted, -1, -1]
