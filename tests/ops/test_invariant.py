"""A row's result is the same bits, however many rows there are and wherever it stands among them."""

import pytest
import torch

from octavo.ops.invariant import in_tiles
from octavo.ops.linear import linear
from octavo.ops.select import choose_ops
from tests.interpreter import interpret

DEVICE = torch.device("cpu" if interpret() else "cuda")

NUM_ROWS = (1, 2, 3, 7, 16, 17, 33, 64, 129)


def check(op, weight, x, residual):
    norm = (torch.ones(x.shape[1], device=x.device), 1e-5)
    whole = op(x, weight, norm=norm, residual=residual.clone(), scale=0.5)
    for count in NUM_ROWS:
        one = op(x[-count:].contiguous(), weight, norm=norm, residual=residual[-count:].clone(), scale=0.5)
        assert torch.equal(one, whole[-count:]), count


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_on_the_cpu(level, dtype):
    torch.manual_seed(0)
    ops = choose_ops("cpu", level, invariant=True)
    weight, x, residual = torch.randn(96, 64).to(dtype), torch.randn(150, 64).to(dtype), torch.randn(150, 96).to(dtype)
    check(ops.linear, ops.pack_linear(weight), x, residual)


def test_no_rows_and_what_the_plain_product_gives():
    x, weight, bias = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    tiled = in_tiles(lambda x, weight, bias, residual, scale: linear(x, weight, bias, residual=residual, scale=scale), 2)
    torch.testing.assert_close(tiled(x, weight, bias, None, 1.0), linear(x, weight, bias))
    assert tiled(x[:0], weight, None, None, 1.0).shape == (0, 6)


def test_the_kernel_s_products():
    pytest.importorskip("triton", reason="Triton is not on this machine")
    from octavo.ops.triton.fixed import fixed_product

    torch.manual_seed(0)
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    for n, k, bias in ((200, 72, True), (64, 128, False)):
        x, weight = torch.randn(150, k, device=DEVICE).to(dtype), torch.randn(n, k, device=DEVICE).to(dtype) / 8
        given, residual = (torch.randn(n, device=DEVICE).to(dtype) if bias else None), torch.randn(150, n, device=DEVICE).to(dtype)
        found = fixed_product(x, weight, given, residual, 0.5)
        expected = linear(x.float(), weight.float(), None if given is None else given.float(), residual=residual.float(), scale=0.5)
        torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=1e-2)
        for count in (1, 3, 64, 65):
            few = fixed_product(x[-count:], weight, given, residual[-count:], 0.5)
            if DEVICE.type == "cuda":
                assert torch.equal(few, found[-count:]), count
            else:  # the interpreter's own products, by numpy, hang on where a row stands in its tile
                torch.testing.assert_close(few, found[-count:], rtol=1e-5, atol=1e-5)
