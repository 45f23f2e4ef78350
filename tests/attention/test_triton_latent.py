"""The Triton kernels for latents against the reference: in the interpreter where there is no GPU, else on it as models use them."""

import random
from dataclasses import replace

import pytest
import torch

from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention
from octavo.attention.triton_latent import LatentTuning, TritonLatent
from tests.attention.test_reference import make_batch
from tests.interpreter import interpret

INTERPRETED = interpret()

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


@pytest.mark.skipif(not INTERPRETED, reason="in the interpreter")
@pytest.mark.parametrize("slices", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(("heads", "rank", "rotated", "block_tokens"), [(4, 24, 8, 8), (20, 32, 16, 16), (32, 16, 4, 16)])
def test_small_shapes(slices, heads, rank, rotated, block_tokens):
    torch.manual_seed(0)
    compare(slices, heads, rank, rotated, block_tokens, torch.float32, SMALL)
    compare(slices, heads, rank, rotated, block_tokens, torch.float16, SMALL, padding=3, atol=4e-3)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="on a card")
@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("slices", [DECODES, MIXED, [(0, 1, 5000), (1, 1, 3)], [(0, 700, 1500), (2, 1, 900)]])
def test_shapes_of_models_on_a_card(slices, heads):
    torch.manual_seed(0)
    compare(slices, heads, 512, 64, 16, torch.bfloat16, None, padding=2, device="cuda", atol=3e-2)
