"""Blocks of a GGUF file kept packed: the same numbers as the reader's own dequantising, as a scheme of a linear layer."""

from types import SimpleNamespace

import pytest
import torch

from octavo.ops.expand_blocks import dequantize
from octavo.ops.packed_linear import pack_blocks, packed_linear, packed_rows, unpack
from octavo.quant.gguf import BLOCK_BYTES, GGUFBlocks


def blocks(kind: str, n: int, k: int) -> torch.Tensor:
    """Random blocks with finite scales."""
    raw = torch.randint(0, 256, (n, k // 32, BLOCK_BYTES[kind])).byte()
    numbers = 2 if kind == "Q4_1" else 1
    raw[:, :, : 2 * numbers] = torch.randn(n, k // 32, numbers).half().view(torch.uint8)
    return raw


@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (5, 64), (40, 96)])
def test_repacked_blocks_are_the_same_numbers(kind: str, n: int, k: int) -> None:
    raw = blocks(kind, n, k)
    assert torch.equal(unpack(pack_blocks(raw, kind)).flatten(), dequantize(raw, kind, n * k, torch.float32))


@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_as_the_scheme_of_a_layer(kind: str) -> None:
    scheme, n, k = GGUFBlocks(kind), 24, 64
    spec = scheme.params(k, n, torch.float32)["weight"]
    raw = blocks(kind, n, k)
    assert raw.shape == spec.shape
    weight = torch.nn.Parameter(raw, requires_grad=False)
    ops = SimpleNamespace(packed_linear=packed_linear, packed_rows=packed_rows, pack_blocks=pack_blocks)
    layer = SimpleNamespace(weight=weight, bias=None, scale=1.0, dtype=torch.float32, ops=ops)
    plain = dequantize(raw, kind, n * k, torch.float32).view(n, k)
    tokens, elsewhere = torch.tensor([103, 100, 123, 99, 124]), torch.tensor([1, 1, 1, 0, 0]).unsqueeze(1)
    rows = plain[[3, 0, 23, 0, 0]] * elsewhere
    assert torch.equal(scheme.rows(layer, tokens, 100), rows)
    scheme.finish(layer)
    assert torch.equal(scheme.rows(layer, tokens, 100), rows)
    x, residual = torch.randn(3, k), torch.randn(3, n)
    torch.testing.assert_close(scheme.apply(layer, x, None, None, residual), residual + x @ plain.T, rtol=1e-5, atol=1e-4)
