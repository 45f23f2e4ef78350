import gguf
import numpy as np
import pytest
import torch

from octavo.models.gguf_reader import BLOCK_TYPES
from octavo.ops.expand_blocks import CHUNK_VALUES, DEQUANTIZE, dequantize
from tests.ops.blocks import random_blocks

QUANTIZED_BY_GGUF = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def test_block_sizes_are_those_of_the_format():
    for number, block in BLOCK_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (block.name, (block.values, block.num_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("kind", DEQUANTIZE)
def test_every_bit_pattern_means_what_gguf_says(kind):
    blocks = random_blocks(kind, 300)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    assert np.isfinite(expected).all()
    found = dequantize(torch.from_numpy(blocks), kind, expected.size, torch.float32)
    np.testing.assert_array_equal(found.numpy(), expected.reshape(-1))


@pytest.mark.parametrize("kind", QUANTIZED_BY_GGUF)
def test_quantised_numbers_come_back_near_themselves(kind):
    values = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    found = dequantize(torch.from_numpy(packed), kind, values.size, torch.float32).view(8, 64)
    steps = {"4": 15, "5": 31, "8": 255}[kind[1]]
    assert (found - torch.from_numpy(values)).abs().max() < (values.max() - values.min()) / steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_are_rounded_from_float32(dtype):
    blocks = torch.from_numpy(random_blocks("Q4_K", 8))
    exact = dequantize(blocks, "Q4_K", 8 * 256, torch.float32)
    assert torch.equal(dequantize(blocks, "Q4_K", 8 * 256, dtype), exact.to(dtype))


def test_a_tensor_of_several_chunks_equals_its_parts():
    num_blocks = 2 * CHUNK_VALUES // 32 + 3
    blocks = torch.from_numpy(random_blocks("Q8_0", num_blocks))
    whole = dequantize(blocks, "Q8_0", num_blocks * 32, torch.float32)
    parts = [dequantize(part, "Q8_0", len(part) * 32, torch.float32) for part in blocks.split(1000)]
    assert torch.equal(whole, torch.cat(parts))
