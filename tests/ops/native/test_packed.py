"""Products with packed weights: the C kernel against its torch reference with x rounded the same way, and the layout there and back."""

import pytest
import torch

from octavo.ops.native.binding import Native
from octavo.ops.native.twins import Twins
from octavo.ops.native.ways import TileRows
from octavo.ops.packed_linear import LARGEST, Packed, numbers_of, pack, pack_blocks, packed_linear, packed_rows, round_groups, unpack

KINDS = [(4, False), (4, True), (8, False)]


@pytest.fixture
def twins(native: Native) -> Twins:
    """By vectors at any number of rows: tiles round otherwise, and `test_tiles.py` is theirs."""
    torch.manual_seed(0)
    return Twins(native, TileRows())


def weights(n: int, k: int, bits: int, with_offset: bool) -> tuple[Packed, torch.Tensor, torch.Tensor]:
    """A packed weight, the numbers they stand for [n, k], and how large the terms are that these are made of; extreme codes occur."""
    values = torch.randint(0, 16, (n, k // 32, 32)).byte() if bits == 4 else torch.randint(-128, 128, (n, k // 32, 32)).to(torch.int8)
    values[: n // 2, :, ::3] = 15 if bits == 4 else -128
    scale = (torch.randn(n, k // 32) / (k**0.5 * 2**bits)).half()
    offset = (torch.randn(n, k // 32) / k**0.5).half() if with_offset else None
    plain = values.float() - (8 if bits == 4 and not with_offset else 0)
    plain = plain * scale.float().unsqueeze(2) + (0 if offset is None else offset.float().unsqueeze(2))
    terms = (values.float().abs() + (8 if bits == 4 else 128)) * scale.float().abs().unsqueeze(2) + plain.abs()
    return pack(values, scale, offset, bits), plain.flatten(1), terms.flatten(1)


@pytest.mark.parametrize(("bits", "with_offset"), KINDS)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (1, 64), (50, 96), (131, 576)])
def test_the_layout_there_and_back(n: int, k: int, bits: int, with_offset: bool) -> None:
    torch.manual_seed(0)
    weight, plain, _ = weights(n, k, bits, with_offset)
    assert weight.codes.numel() == -(-n // 16) * 16 * k * bits // 8
    assert torch.equal(unpack(weight), plain)
    rows = torch.tensor([n - 1, 0, n // 2, 0])
    assert torch.equal(unpack(weight, rows), plain[rows])


@pytest.mark.parametrize(("kind", "block_bytes"), [("Q4_0", 18), ("Q4_1", 20), ("Q8_0", 34)])
@pytest.mark.parametrize(("n", "groups"), [(16, 1), (1, 2), (50, 3), (131, 18)])
def test_blocks_of_a_file_are_laid_out_alike(twins: Twins, kind: str, block_bytes: int, n: int, groups: int) -> None:
    blocks = torch.randint(0, 256, (n, groups, block_bytes + 3)).byte()[:, :, :block_bytes]
    got, expected = twins.pack_blocks(blocks, kind), pack_blocks(blocks, kind)
    assert got.out_features == expected.out_features == n
    assert got.scales.shape[2] == numbers_of(kind)
    for mine, reference in zip(got[:2], expected[:2], strict=True):
        assert mine.shape == reference.shape
        assert torch.equal(mine.view(torch.uint8), reference.contiguous().view(torch.uint8))  # bit by bit: a scale may be NaN


@pytest.mark.parametrize(("bits", "with_offset"), KINDS)
def test_rows_of_an_embedding(twins: Twins, bits: int, with_offset: bool) -> None:
    weight = weights(50, 96, bits, with_offset)[0]
    tokens = torch.tensor([7, 9, 6, 55, 57, 56])
    for dtype in (torch.float32, torch.bfloat16):
        torch.testing.assert_close(twins.packed_rows(weight, tokens, 7, dtype), packed_rows(weight, tokens, 7, dtype))


@pytest.mark.parametrize(("bits", "with_offset"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(16, 32), (1, 64), (50, 96), (131, 576), (300, 1536)])
def test_products(twins: Twins, n: int, k: int, dtype: torch.dtype, bits: int, with_offset: bool) -> None:
    weight, plain, terms = weights(n, k, bits, with_offset)
    for m in (0, 1, 2, 3, 5, 8, 70, 131):
        x = (torch.randn(m, k + 8)[:, :k] * torch.logspace(-3, 3, m).unsqueeze(1)).to(dtype)
        bias = torch.randn(n).to(dtype) if m % 2 else None
        got = twins.packed_linear(x, weight, bias)
        wide, added = x.double(), torch.zeros(n).double() if bias is None else bias.double()
        rounding = 1e-6 * (wide.abs() @ terms.double().T + added.abs()) + (0 if dtype is torch.float32 else 2**-8) * got.double().abs()
        same_rounding = packed_linear(round_groups(x.float()), weight, bias)
        assert ((got.double() - same_rounding.double()).abs() <= rounding).all()
        exact = wide @ plain.double().T + added
        half_steps = wide.unflatten(1, (-1, 32)).abs().amax(-1).repeat_interleave(32, dim=1) / (2 * 127 - 1)
        assert ((got.double() - exact).abs() <= half_steps @ plain.double().abs().T + rounding).all()


def test_what_happens_around_a_product_happens_with_it(twins: Twins) -> None:
    for n, k, gate in ((64, 96, "silu"), (64, 96, "gelu_tanh"), (40, 64, "silu"), (50, 96, None)):
        weight = weights(n, k, 4, True)[0]
        for m in (1, 3, 70):
            x, norm, width = torch.randn(m, k), (torch.rand(k), 1e-5), n if gate is None else n // 2
            for residual in (None, torch.randn(1, width), torch.randn(m, width + 8)[:, :width]):
                bias = None if m == 3 else torch.randn(n)
                got = twins.packed_linear(x, weight, bias, norm, gate, residual, 0.5)
                expected = packed_linear(round_groups(twins.rms_norm(x, *norm)), weight, bias, None, gate, residual, 0.5)
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_groups_that_stand_out_are_held_more_exactly(twins: Twins) -> None:
    torch.manual_seed(1)
    weight, plain, _ = weights(64, 32 * 18, 4, True)
    x = torch.randn(5, 32 * 18)
    x[:, 64:96] *= 100
    exact = x.double() @ plain.double().T
    error = (twins.packed_linear(x, weight, None) - exact).abs().mean()
    coarse = x.unflatten(1, (-1, 32))
    step = coarse.abs().amax(-1, keepdim=True) / (LARGEST / 128)
    in_bytes = ((coarse / step).round() * step).flatten(1).double() @ plain.double().T
    assert error < (in_bytes - exact).abs().mean() / 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("m", [1, 3])
def test_what_is_no_number_stays_none(twins: Twins, bad: float, m: int) -> None:
    weight, _, _ = weights(20, 64, 8, False)
    x = torch.zeros(m, 64)
    x[-1, 33] = bad
    got = twins.packed_linear(x, weight, None)
    assert not got[-1].isfinite().any()
    assert got[:-1].isfinite().all()


def test_rows_of_zeros_and_tiny_numbers(twins: Twins) -> None:
    weight, plain, _ = weights(20, 64, 4, True)
    x = torch.zeros(3, 64)
    x[1, 40] = 1e-30
    got = twins.packed_linear(x, weight, None)
    assert torch.equal(got[[0, 2]], torch.zeros(2, 20))
    torch.testing.assert_close(got[1], x[1] @ plain.T, rtol=1e-4, atol=0)
