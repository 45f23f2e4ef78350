"""Products by AMX's tiles, which are emulated where the machine has none: against torch, and against the kernels that they replace."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from octavo.attention.backend import AttentionShape
from octavo.attention.cpu import NativeAttention
from octavo.ops.linear import linear
from octavo.ops.native import binding, build
from octavo.ops.native.binding import Native, Op
from octavo.ops.native.twins import Twins
from octavo.ops.native.ways import TUNED, TileRows
from octavo.ops.packed_linear import unpack
from octavo.ops.rms_norm import rms_norm
from tests.attention.test_cpu import check
from tests.ops.native.conftest import opened
from tests.ops.native.test_packed import KINDS, weights
from tests.ops.native.test_twins import close

ROWS = (0, 1, 16, 17, 31, 33, 98)


@pytest.fixture(scope="module", params=[next(iter(build.machine_variants()))])
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    """The best instruction set of this machine, with emulated tiles if it has none, over three threads."""
    with pytest.MonkeyPatch.context() as patch:
        if binding.build is build.build:
            patch.setattr(binding, "build", lambda cache, variant: build.build(cache, variant, ("-DEMULATE_AMX",)))
        yield from opened(request.param)


@pytest.fixture
def tiles(native: Native) -> Twins:
    torch.manual_seed(0)
    return Twins(native, TileRows(panels=0, packed=0))


@pytest.mark.parametrize(("n", "k"), [(16, 32), (48, 64), (208, 96), (32, 34)])
def test_panels_of_bfloat16(tiles: Twins, n: int, k: int) -> None:
    for m, around in itertools.product(ROWS, (False, True)):
        x, weight = torch.randn(m, k + 8)[:, 4:-4].bfloat16(), (torch.randn(n, k) / k**0.5).bfloat16()
        bias, residual = (torch.randn(n).bfloat16(), torch.randn(m, n + 2).bfloat16()[:, 1:-1]) if around else (None, None)
        scale = 0.5 if around else 1.0
        y = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        want = scale * y + (0 if residual is None else residual.double())
        close(tiles.product(x, tiles.pack_linear(weight.clone()), bias, residual, scale), want)


@pytest.mark.parametrize("x_type", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_type", [torch.float32, torch.bfloat16])
def test_other_types_take_vectors(tiles: Twins, x_type: torch.dtype, weight_type: torch.dtype) -> None:
    x, weight = torch.randn(20, 64).to(x_type), (torch.randn(48, 64) / 8).to(weight_type)
    close(tiles.linear(x, tiles.pack_linear(weight.clone()), None), x.double() @ weight.double().T)


def test_what_is_not_finite_stays_in_its_row(tiles: Twins) -> None:
    x, weight = torch.randn(20, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    x[1, 3], x[18, 5] = float("nan"), float("inf")
    got = tiles.linear(x, tiles.pack_linear(weight), None)
    assert got[1].isnan().all()
    assert got[18].isinf().all()
    assert got.isfinite().all(1).tolist() == [row not in (1, 18) for row in range(20)]


@pytest.mark.parametrize("shape", [
    AttentionShape(9, 3, 64, 0.125), AttentionShape(4, 4, 32, 0.2, window=40), AttentionShape(8, 2, 96, 0.1, softcap=3.0),
])  # fmt: skip
@pytest.mark.parametrize("block_tokens", [8, 32])
def test_attention(native: Native, shape: AttentionShape, block_tokens: int) -> None:
    """Many rows, and few, of one and of several tokens, whose keys are tiles where blocks have whole ones."""
    slices, sinks = [(1, 1), (16, 16), (1, 200), (33, 150), (2, 65), (70, 71), (1, 47)], torch.linspace(-3, 5, shape.heads)
    check(NativeAttention(native), slices, shape, block_tokens, torch.bfloat16, torch.bfloat16, (5, 2))
    check(NativeAttention(native), [(1, 900)], shape, block_tokens, torch.bfloat16, torch.bfloat16, sinks=sinks)


@pytest.mark.parametrize(("bits", "with_offset"), KINDS)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (131, 96), (34, 544)])
def test_packed_weights(tiles: Twins, n: int, k: int, bits: int, with_offset: bool) -> None:
    """As with every number of x and of the weights rounded to bfloat16."""
    weight = weights(n, k, bits, with_offset)[0]
    short = unpack(weight).bfloat16().double()
    for m, dtype in itertools.product((0, 1, 16, 33, 300), (torch.float32, torch.bfloat16)):
        x = (torch.randn(m, k + 8)[:, :k] * torch.logspace(-3, 3, m).unsqueeze(1)).to(dtype)
        bias = torch.randn(n).to(dtype) if m % 2 else None
        wide = x.bfloat16().double()
        want = wide @ short.T + (0 if bias is None else bias.double())
        rounding = 1e-5 * (wide.abs() @ short.abs().T + 1) + (0 if dtype is torch.float32 else 2**-8) * want.abs()
        assert ((tiles.packed_linear(x, weight, bias).double() - want).abs() <= rounding).all()


def test_packed_weights_with_all_around_them(tiles: Twins) -> None:
    """Panels in pairs and one left over, whole and not; gates in the same piece as what they multiply, or, in odd sizes, after it."""
    for n, gate in ((64, "silu"), (96, "gelu_tanh"), (40, "silu"), (50, None), (48, None)):
        weight, norm, width = weights(n, 96, 4, True)[0], (torch.rand(96), 1e-5), n if gate is None else n // 2
        short = unpack(weight).bfloat16().float()
        for m, residuals in itertools.product((1, 30, 70), (None, torch.randn(1, width), torch.randn(70, width + 8)[:, :width])):
            x, bias, residual = torch.randn(m, 96), torch.randn(n) if m == 30 else None, None if residuals is None else residuals[:m]
            got = tiles.packed_linear(x, weight, bias, norm, gate, residual, 0.5)
            want = linear(rms_norm(x, *norm).bfloat16().float(), short, bias, None, gate, residual, 0.5)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_packed_weights_pass_what_is_not_finite_on(tiles: Twins) -> None:
    x = torch.randn(20, 64)
    x[1, 3], x[18, 5] = float("nan"), float("inf")
    got = tiles.packed_linear(x, weights(40, 64, 8, False)[0], None)
    assert got.isfinite().all(1).tolist() == [row not in (1, 18) for row in range(20)]


def test_the_table_decides_by_rows(native: Native) -> None:
    twins = Twins(native, TileRows(panels=3, packed=5))
    weight, packed = twins.pack_linear(torch.randn(32, 64).bfloat16()), weights(32, 64, 4, True)[0]
    with native.recording() as operations:
        for m in (2, 3, 4, 5):
            twins.linear(torch.randn(m, 64).bfloat16(), weight, None)
            twins.packed_linear(torch.randn(m, 64).bfloat16(), packed)
    taken = [op for op, _, _ in operations]
    assert taken[::2] == [Op.PANELS, Op.PANEL_TILES, Op.PANEL_TILES, Op.PANEL_TILES]
    assert taken[1::2] == [Op.PACKED, Op.PACKED, Op.PACKED, Op.PACKED_TILES]
    assert set(TUNED) <= {variant.name for variant in build.VARIANTS}
