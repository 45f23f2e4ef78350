"""The Triton kernels for latents against the reference, in Triton's interpreter; over shapes of models: tests/gpu/test_attention.py."""

import random
from dataclasses import replace

import pytest
import torch

from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention
from octavo.attention.triton_latent import LatentTuning, TritonLatent
from tests.attention.test_reference import make_batch
from tests.interpreter import interpret

pytestmark = pytest.mark.skipif(not interpret(), reason="in the interpreter")

SMALL = LatentTuning(heads=16, programs=3, shortest=16, block_n=16, num_warps=4, num_stages=1)
DECODES = [(2, 1, 40), (0, 1, 5), (3, 1, 70), (1, 1, 1), (4, 1, 16)]  # row, count, length
MIXED = [(2, 1, 35), (0, 19, 19), (3, 18, 45), (4, 2, 30)]


def compare(slices, heads, rank, rotated, block_tokens, dtype, tuning, padding=0, device="cpu", atol=2e-3):
    """Outputs of both backends over memory in which whatever must not be read is NaN."""
    rng = random.Random(block_tokens)
    shape = AttentionShape(heads, 1, rank + rotated, 0.3, value_dim=rank)
    batch = make_batch(slices, padding)
    batch = replace(batch, slots=torch.full((1, batch.num_tokens + padding), -1))
    width = -(-max(length for *_, length in slices) // block_tokens)
    blocks = list(range(1, 1 + 5 * width))
    rng.shuffle(blocks)
    table = torch.tensor(blocks, dtype=torch.int32).view(5, width)
    kv = torch.full((1 + 5 * width, 1, block_tokens, 1, rank + rotated), float("nan"), dtype=dtype)
    for row, _, length in slices:
        for p in range(length):
            kv[table[row, p // block_tokens], 0, p % block_tokens, 0] = torch.randn(rank + rotated).to(dtype)
    q = torch.randn(batch.num_tokens + padding, heads, rank + rotated).to(dtype)
    reference, backend = ReferenceAttention(), TritonLatent(tuning)
    want = reference.run(reference.plan(batch, 0, table, block_tokens), q.float(), kv.float(), shape)
    batch = type(batch)(**{name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(batch).items()})
    plan = backend.plan(batch, 0, table.to(device), block_tokens)
    for _ in range(2):  # the second layer finds the work listed, and the counters as they must be
        got = backend.run(plan, q.to(device), kv.to(device), shape)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().float(), want, atol=atol, rtol=atol)
    assert not got[batch.num_tokens :].any()


@pytest.mark.parametrize("slices", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(("heads", "rank", "rotated", "block_tokens"), [(4, 24, 8, 8), (20, 32, 16, 16), (32, 16, 4, 16)])
def test_small_shapes(slices, heads, rank, rotated, block_tokens):
    torch.manual_seed(0)
    compare(slices, heads, rank, rotated, block_tokens, torch.float32, SMALL)
    compare(slices, heads, rank, rotated, block_tokens, torch.float16, SMALL, padding=3, atol=4e-3)
