"""Attention's Triton kernels on a GPU, over the shapes and dtypes of models, against the reference on the CPU."""

import pytest
import torch

from octavo.attention.backend import AttentionShape
from octavo.ops.kv_format import COMPRESSED
from tests.attention.test_triton import compare
from tests.attention.test_triton import no_small_work as no_small_work
from tests.attention.test_triton_latent import DECODES, MIXED
from tests.attention.test_triton_latent import compare as compare_latent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("kv_dtype", sorted(COMPRESSED))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64)])
def test_compressed_memory(kv_dtype, heads, kv_heads, head_dim):
    torch.manual_seed(0)
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5)
    for slices in ([(2, 1, 700), (0, 1, 5), (3, 1, 1300), (4, 1, 128)], [(2, 1, 700), (0, 150, 150), (3, 1200, 1300), (4, 3, 500)]):
        compare(slices, shape, 16, torch.bfloat16, tuning=None, device="cuda", atol=2e-2, kv_dtype=kv_dtype)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64)])
def test_cudnn(heads, kv_heads, head_dim, no_small_work):
    torch.manual_seed(0)
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5)
    for slices, num_fresh in (([(0, 700, 700), (1, 1500, 1500)], 2), ([(0, 1, 300), (1, 200, 400), (2, 1100, 1100), (3, 64, 64)], 2)):
        compare(slices, shape, 16, torch.bfloat16, tuning=None, device="cuda", atol=2e-2, num_fresh=num_fresh)


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
def test_heads_windows_and_dtypes(dtype, heads, kv_heads, head_dim, block_tokens, window, softcap):
    torch.manual_seed(0)
    atol = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}[dtype]
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5, window, softcap)
    decodes = [(2, 1, 700), (0, 1, 5), (3, 1, 1300), (1, 1, 1), (4, 1, 128)]
    mixed = [(2, 1, 700), (0, 150, 150), (3, 200, 900), (1, 1, 1), (4, 3, 500)]
    for slices in (decodes, mixed):
        compare(slices, shape, block_tokens, dtype, tuning=None, padding=3, device="cuda", atol=atol)


@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize("slices", [[(2, 1, 700), (0, 1, 5), (3, 1, 1300)], [(2, 1, 700), (0, 150, 150), (3, 1200, 1300)]])
def test_sinks(slices, window):
    torch.manual_seed(0)
    shape = AttentionShape(64, 8, 64, 0.125, window)
    compare(slices, shape, 16, torch.bfloat16, tuning=None, device="cuda", atol=2e-2, sinks=torch.randn(64))


@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("slices", [DECODES, MIXED, [(0, 1, 5000), (1, 1, 3)], [(0, 700, 1500), (2, 1, 900)]])
def test_latents(slices, heads):
    torch.manual_seed(0)
    compare_latent(slices, heads, 512, 64, 16, torch.bfloat16, None, padding=2, device="cuda", atol=3e-2)
