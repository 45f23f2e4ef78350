"""The Triton kernels against the reference: in Triton's interpreter where there is no GPU, else on it with the dtypes that models use."""

import random

import pytest
import torch

from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention
from octavo.attention.triton import PieceTuning, TileTuning, TritonAttention, Tuning
from tests.attention.test_reference import make_batch
from tests.interpreter import interpret

INTERPRETED = interpret()

SMALL = Tuning(PieceTuning(programs=3, shortest=16, block_n=16), TileTuning(block_m=16, block_n=16, num_warps=4))
DECODES = [(2, 1, 40), (0, 1, 5), (3, 1, 70), (1, 1, 1), (4, 1, 16)]  # row, count, length
FEW = [(2, 2, 40), (0, 2, 2), (3, 1, 50)]
MIXED = [(2, 1, 35), (0, 19, 19), (3, 18, 45), (4, 2, 30)]


def compare(slices, shape, block_tokens, dtype, tuning=SMALL, padding=0, device="cpu", atol=2e-3):
    """Outputs of both backends over memory in which whatever must not be read is NaN."""
    rng = random.Random(block_tokens)
    batch = make_batch(slices, padding)
    width = -(-max(length for *_, length in slices) // block_tokens)
    blocks = list(range(1, 1 + 5 * width))
    rng.shuffle(blocks)
    table = torch.tensor(blocks, dtype=torch.int32).view(5, width)
    kv = torch.full((1 + 5 * width, 2, block_tokens, shape.kv_heads, shape.head_dim), float("nan"), dtype=dtype)
    for row, _, length in slices:
        for p in range(length):
            kv[table[row, p // block_tokens], :, p % block_tokens] = torch.randn(2, shape.kv_heads, shape.head_dim).to(dtype)
    num_tokens = batch.num_tokens + padding
    wide = torch.randn(num_tokens, shape.heads + 2, shape.head_dim).to(dtype)  # q may be a view of a packed product
    q = wide[:, : shape.heads]
    reference, backend = ReferenceAttention(), TritonAttention(tuning)
    want = reference.run(reference.plan(batch, 0, table, block_tokens), q.float(), kv.float(), shape)
    batch = type(batch)(**{name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(batch).items()})
    plan = backend.plan(batch, 0, table.to(device), block_tokens)
    for _ in range(2):  # the second layer finds the work listed, and the counters as they must be
        got = backend.run(plan, q.to(device), kv.to(device), shape)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().float(), want, atol=atol, rtol=atol)
    assert not got[batch.num_tokens :].any()


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


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="no CUDA device")
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_dim", "block_tokens", "window", "softcap"),
    [
        (torch.bfloat16, 32, 8, 128, 16, None, None),
        (torch.bfloat16, 16, 8, 128, 16, None, None),
        (torch.bfloat16, 9, 3, 64, 16, None, None),
        (torch.bfloat16, 32, 8, 128, 128, 100, None),
        (torch.bfloat16, 8, 2, 256, 32, 100, 20.0),
        (torch.bfloat16, 4, 4, 80, 8, None, None),
        (torch.float16, 8, 1, 128, 64, None, 20.0),
        (torch.float32, 4, 2, 128, 16, None, None),
    ],
)
def test_on_the_device(dtype, heads, kv_heads, head_dim, block_tokens, window, softcap):
    torch.manual_seed(0)
    atol = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}[dtype]
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5, window, softcap)
    decodes = [(2, 1, 700), (0, 1, 5), (3, 1, 1300), (1, 1, 1), (4, 1, 128)]
    mixed = [(2, 1, 700), (0, 150, 150), (3, 200, 900), (1, 1, 1), (4, 3, 500)]
    for slices in (decodes, mixed):
        compare(slices, shape, block_tokens, dtype, tuning=None, padding=3, device="cuda", atol=atol)
