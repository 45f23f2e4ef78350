"""Each C operation against its torch reference over awkward shapes, in every type and for each instruction set of the machine."""

import itertools

import pytest
import torch

from octavo.ops.draw import Settings, draw, draw_rows, thresholds
from octavo.ops.embedding import embedding
from octavo.ops.expand_blocks import DEQUANTIZE, dequantize
from octavo.ops.gated import gelu_tanh_mul, silu_mul
from octavo.ops.kv_format import FP8, LARGEST, kv_dtype
from octavo.ops.native.twins import Twins
from octavo.ops.rms_norm import add_rms_norm, rms_norm
from octavo.ops.rope_and_write import rope_and_write
from tests.attention.kv_memory import memory
from tests.ops.blocks import random_blocks

TYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}  # two units in the last place of the two short ones


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    tolerance = TOLERANCE[dtype or got.dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("x_type", TYPES)
def test_linear(twins: Twins, x_type: torch.dtype, weight_type: torch.dtype) -> None:
    rows, sizes = (0, 1, 2, 3, 4, 5, 6, 7, 13, 97, 200), ((1, 1), (2, 7), (7, 33), (64, 64), (131, 100), (12, 576), (300, 48))
    for m, (n, k) in itertools.product(rows, sizes):
        x, weight = torch.randn(m, k).to(x_type), (torch.randn(n, k) / k**0.5).to(weight_type)
        bias = torch.randn(n).to(weight_type) if (m + n) % 2 else None
        want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        close(twins.linear(x, weight, bias), want)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("bias", [None, torch.randn(48)])
def test_product_adds_to_the_residual(twins: Twins, rows: int, scale: float, bias: torch.Tensor | None) -> None:
    x, weight, residual = torch.randn(rows, 34), torch.randn(48, 34) / 6, torch.randn(rows, 48)
    y = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    close(twins.product(x, weight, bias, None, scale), scale * y)
    close(twins.product(x, weight, bias, residual.clone(), scale), residual + scale * y)
    close(twins.product(x, twins.pack_linear(weight.clone()), bias, residual.clone(), scale), residual + scale * y)
    for short in (torch.bfloat16, torch.float16):
        one, wide = residual[:1].to(short), torch.randn(rows, 50).to(short)[:, 1:49]
        for added in (one, wide):
            close(twins.product(x.to(short), weight, bias, added, scale), added.double() + scale * y)


def test_linear_reads_rows_at_any_stride(twins: Twins) -> None:
    x, weight = torch.randn(5, 80)[:, 16:64], torch.randn(20, 90)[:, 3:51]
    close(twins.linear(x, weight, None), x @ weight.T)
    turned = torch.randn(48, 5).T
    close(twins.linear(turned, weight, None), turned @ weight.T)


def test_linear_passes_what_is_not_finite_on(twins: Twins) -> None:
    x, weight = torch.randn(3, 40).bfloat16(), torch.randn(9, 40).bfloat16()
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    got = twins.linear(x, weight, None)
    assert got[0].isfinite().all()
    assert got[1].isnan().all()
    assert got[2].isinf().all()


@pytest.mark.parametrize("weight_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x_type", TYPES)
def test_linear_with_packed_weights(twins: Twins, x_type: torch.dtype, weight_type: torch.dtype) -> None:
    for m, (n, k) in itertools.product((0, 1, 2, 3, 4, 5, 6, 7, 13, 97, 200), ((16, 2), (48, 34), (64, 64), (80, 100), (304, 576))):
        x, weight = torch.randn(m, k + 2)[:, 1:-1].to(x_type), (torch.randn(n, k) / k**0.5).to(weight_type)
        bias = torch.randn(n).to(weight_type) if (m + n) % 3 else None
        want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        pair = 4 // weight.element_size()
        layout = weight.clone().view(n // 16, 16, k // pair, pair).transpose(1, 2)
        packed = twins.pack_linear(weight)
        assert torch.equal(packed, layout)
        assert packed.data_ptr() == weight.data_ptr()
        close(twins.linear(x, packed, bias), want)


def test_weights_that_fill_no_panels_stay_as_they_are(twins: Twins) -> None:
    for weight in (torch.randn(15, 8), torch.randn(16, 7).bfloat16(), torch.randn(16, 8).half(), torch.randn(0, 4), torch.randn(8, 16).T):
        assert twins.pack_linear(weight).shape == weight.shape


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", DEQUANTIZE)
def test_blocks_are_expanded_to_the_same_bits(twins: Twins, kind: str, dtype: torch.dtype) -> None:
    for count in (1, 7, 2100):  # the last is more than one lane's piece of either size of block
        blocks = torch.from_numpy(random_blocks(kind, count, seed=count))
        want = dequantize(blocks, kind, count * (256 if kind.endswith("K") else 32), dtype)
        out = torch.full((want.numel() + 2,), 7, dtype=dtype)
        twins.expand_blocks(blocks, kind, out[1:-1])
        assert torch.equal(out[1:-1], want)
        assert out[0] == out[-1] == 7


@pytest.mark.parametrize("n", [64, 50])
@pytest.mark.parametrize("dtype", TYPES)
def test_embedding_reads_packed_and_plain_tables(twins: Twins, dtype: torch.dtype, n: int) -> None:
    table, tokens = torch.randn(n, 24).to(dtype), torch.tensor([0, 7, 106, 107, 130, 149, 163, 164, 200])
    want = embedding(tokens, table.clone(), 100)
    assert torch.equal(twins.embedding(tokens, twins.pack_linear(table), 100), want)
    assert twins.embedding(tokens[:0], table, 100).shape[0] == 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "n"), [(0, 8), (1, 1), (3, 7), (5, 64), (9, 100), (130, 576), (2, 3001)])
def test_norms(twins: Twins, dtype: torch.dtype, rows: int, n: int) -> None:
    x, residual, weight = torch.randn(rows, n + 3).to(dtype)[:, :n], torch.randn(rows, n).to(dtype), torch.randn(n)
    close(twins.rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))
    normed, total = twins.add_rms_norm(x, residual, weight, 1e-5, 0.25)
    want_normed, want_total = add_rms_norm(x, residual, weight, 1e-5, 0.25)
    close(total, want_total)
    close(normed, want_normed)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "n"), [(0, 8), (1, 1), (3, 7), (5, 64), (9, 100), (70, 1536)])
def test_gates(twins: Twins, dtype: torch.dtype, rows: int, n: int) -> None:
    packed = (torch.randn(rows, 2 * n) * 3).to(dtype)
    close(twins.silu_mul(packed), silu_mul(packed.double()))
    close(twins.gelu_tanh_mul(packed), gelu_tanh_mul(packed.double()))


def test_gates_at_the_ends_of_the_range(twins: Twins) -> None:
    gates = torch.tensor([-200.0, -100, -88, -20, -1e-3, 0, 1e-30, 1e-3, 20, 88, 100, 200, float("inf"), float("nan")])
    packed = torch.cat((gates, torch.ones_like(gates))).unsqueeze(0)
    for op, reference in ((twins.silu_mul, silu_mul), (twins.gelu_tanh_mul, gelu_tanh_mul)):
        torch.testing.assert_close(op(packed), reference(packed), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("dtype", "kv_type"), [*zip(TYPES, TYPES), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("norm", ["none", "head", "all"])
def test_rope_and_write(twins: Twins, dtype: torch.dtype, kv_type: torch.dtype, norm: str) -> None:
    for tokens, heads, kv_heads, head_dim, rotated, block_tokens in (
        (1, 9, 3, 64, 64, 16), (5, 3, 1, 24, 8, 8), (40, 4, 4, 80, 0, 32), (33, 6, 2, 8, 6, 8),
    ):  # fmt: skip
        qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
        kv = torch.randn(7, 2, block_tokens, kv_heads, head_dim).to(kv_type)
        slots = torch.randperm(7 * block_tokens)[:tokens]
        slots[1::4] = -1
        positions = torch.randint(0, 50, (tokens,))
        cos_sin = torch.randn(50, rotated) if rotated else None
        q_norm = {"none": None, "head": torch.randn(head_dim), "all": torch.randn(heads * head_dim)}[norm]
        k_norm = {"none": None, "head": torch.randn(head_dim), "all": torch.randn(kv_heads * head_dim)}[norm]
        want_kv = kv.double()
        want = rope_and_write(qkv.double(), want_kv, positions, slots, cos_sin, q_norm, k_norm, 1e-6)
        close(twins.rope_and_write(qkv, kv, positions, slots, cos_sin, q_norm, k_norm, 1e-6), want)
        close(kv, want_kv, kv_type if TOLERANCE[kv_type] > TOLERANCE[dtype] else dtype)


@pytest.mark.parametrize("name", ["int8", *FP8])
def test_compressed_formats_are_written_to_the_same_bits(twins: Twins, name: str) -> None:
    for dtype, (tokens, heads, kv_heads, head_dim), scaled in itertools.product(
        TYPES, ((1, 9, 3, 64), (30, 3, 1, 37), (33, 6, 2, 5)), (True, False)
    ):
        mine, theirs = (memory(name, 6, 8, kv_heads, head_dim) for _ in range(2))
        if not scaled and name in FP8:
            mine.kv_scales = theirs.kv_scales = None
        x = torch.randn(tokens, heads + 2 * kv_heads, head_dim) * torch.logspace(-6, 2, head_dim)  # down to the smallest
        x[::5, -1] = 0
        if mine.kv_scales is not None:
            x[1::5, -1, :2] = torch.tensor([2.0 * LARGEST[kv_dtype(name)], 6e4])  # more than there is room for
        slots = torch.randperm(48)[:tokens]
        slots[2::4] = -1
        for kept, op in ((mine, twins.rope_and_write), (theirs, rope_and_write)):
            kept.kv.view(torch.uint8).zero_()
            op(x.to(dtype).flatten(1), kept.kv, slots, slots, None, None, None, 0.0, kept.kv_scales)
        assert torch.equal(mine.kv.view(torch.uint8), theirs.kv.view(torch.uint8))
        assert torch.equal(mine.values(), theirs.values())  # by its scales, too


@pytest.mark.parametrize("name", ["int8", *FP8])
def test_every_code_of_fp8_is_written_as_it_is(twins: Twins, name: str) -> None:
    """And what is no number stays none, where the format knows such."""
    dtype = kv_dtype(name)
    codes = torch.arange(256).to(torch.uint8).view(dtype).float() if name in FP8 else torch.arange(-128, 128).clamp(min=-127).float()
    codes[codes.isinf()] = 0  # cut
    kept, slots = memory(name, 1, 8, 1, 256), torch.tensor([3])
    kept.kv_scales = torch.ones(2) if name in FP8 else kept.kv_scales
    twins.rope_and_write(codes.repeat(1, 3), kept.kv, slots, slots, None, None, None, 0.0, kept.kv_scales)
    torch.testing.assert_close(kept.values()[0, 1, 3, 0], codes, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["int8", *FP8])
def test_compressed_k_is_turned_first(twins: Twins, name: str) -> None:
    mine, theirs = (memory(name, 4, 16, 3, 64) for _ in range(2))
    qkv, slots, table, norm = torch.randn(40, 15 * 64), torch.randperm(64)[:40], torch.randn(64, 32), torch.rand(64)
    for kept, op in ((mine, twins.rope_and_write), (theirs, rope_and_write)):
        kept.kv.view(torch.uint8).zero_()
        op(qkv, kept.kv, slots, slots, table, norm, norm, 1e-6, kept.kv_scales)
    codes = [kept.kv.view(torch.int8).int() for kept in (mine, theirs)]
    assert (codes[0] - codes[1]).abs().max() <= 1  # to either side where float32 rounds differently
    assert (codes[0] != codes[1]).float().mean() < 1e-3


def test_no_tokens_write_nothing(twins: Twins) -> None:
    kv, none = torch.zeros(2, 2, 8, 1, 16), torch.zeros(0, dtype=torch.int64)
    q = twins.rope_and_write(torch.zeros(0, 64), kv, none, none, None, None, None, 0.0)
    assert q.shape == (0, 2, 16)
    assert not kv.any()


def test_writes_into_a_strided_memory(twins: Twins) -> None:
    whole = torch.zeros(6, 3, 2, 8, 2, 16)
    kv, slots = whole[:, 1], torch.tensor([3, 17, -1])
    qkv = torch.randn(3, 6 * 16)
    twins.rope_and_write(qkv, kv, torch.zeros(3, dtype=torch.int64), slots, None, None, None, 0.0)
    assert torch.equal(kv[0, 0, 3].flatten(), qkv[0, 32:64])
    assert torch.equal(kv[2, 1, 1].flatten(), qkv[1, 64:])
    assert whole.count_nonzero() == 4 * 32


@pytest.mark.parametrize("n", [1, 3, 8, 17, 1000, 49152])
def test_argmax(twins: Twins, n: int) -> None:
    x = torch.randint(-4, 4, (9, n)).float()
    x[1, n // 2] = float("nan")
    x[2] = float("-inf")
    for some in (x, x.bfloat16()):
        tokens, peaks = twins.best(some)
        assert torch.equal(tokens, torch.from_numpy(some.float().numpy().argmax(-1)))
        torch.testing.assert_close(peaks, some.float().gather(1, tokens[:, None])[:, 0], equal_nan=True, rtol=0, atol=0)
    assert twins.best(x[:0])[0].shape == (0,)


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 700, 5000])
def test_draw(twins: Twins, n: int) -> None:
    kinds = list(itertools.product((0, 1, 3, 50, 2**31 - 1), (1.0, 0.95, 0.5, 1e-6), (0.0, 0.02, 1.0)))
    for scale, ties in itertools.product((0.0, 1.0, 6.0), (False, True)):
        logits = torch.randn(len(kinds), n + 3)[:, 2 : n + 2] * scale
        logits = logits.round() if ties else logits
        logits[:, torch.randint(n, (n // 4,))] = -torch.inf
        logits[:, n // 2] = 0.5
        top_k, top_p, min_p = (torch.tensor(x) for x in zip(*kinds))
        arguments = (
            logits, logits.amax(-1), torch.rand(len(kinds), dtype=torch.float64), torch.rand(len(kinds)) + 0.3, top_k.int(), top_p, min_p,
        )  # fmt: skip
        assert twins.draw(*arguments).tolist() == draw(*arguments).tolist()
        assert twins.draw(*arguments[:4], None, None, None).tolist() == draw(*arguments[:4], None, None, None).tolist()
        weights = ((logits - arguments[1][:, None]) / arguments[3][:, None]).exp()
        least = thresholds(weights, *arguments[4:])
        for number in (0.0, 1 - 2.0**-52):  # the ends: rounding may choose between neighbours, but only among what is kept
            tokens = twins.draw(*arguments[:2], torch.full((len(kinds),), number, dtype=torch.float64), *arguments[3:])
            drawn = weights.gather(1, tokens[:, None])[:, 0]
            assert ((drawn >= least * 0.99999) & (drawn > 0)).all()


def test_draw_gives_a_token_for_rows_that_have_none(twins: Twins) -> None:
    logits = torch.randn(4, 100)
    logits[0], logits[1, 5], logits[2, 5] = -torch.inf, torch.nan, torch.inf
    some = torch.full((4,), 0.5)
    tokens = twins.draw(logits, logits.amax(-1), some.double(), some * torch.tensor([1, 1, 1, 0]), None, some, None)
    assert all(0 <= token < 100 for token in tokens.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draw_rows(twins: Twins, dtype: torch.dtype) -> None:
    """Settings of rows in another order than the logits, some rows greedy; every number that a row draws counts."""
    logits, rows = (torch.randn(6, 340) * 3).to(dtype)[:, 5:335], torch.tensor([4, 0, 7, 2, 2, 5])
    positions, at = torch.randint(0, 1 << 40, (20,)), torch.tensor([3, 0, 19, 8, 9, 4])
    settings = Settings(
        torch.tensor([0.7, 1, 0, 1, 2, 0.3, 1, 1]), torch.randint(-(2**63), 2**63 - 1, (8,)), torch.randint(0, 9, (8,)).int(),
        torch.rand(8), torch.rand(8) / 50,
    )  # fmt: skip
    for some in (settings, settings._replace(top_k=None, min_p=None)):
        (tokens, peaks), (want, want_peaks) = (op(logits, rows, positions, at, some) for op in (twins.draw_rows, draw_rows))
        assert tokens.tolist() == want.tolist()
        assert torch.equal(peaks, want_peaks)
    assert twins.draw_rows(logits[:0], rows[:0], positions, at[:0], settings)[0].shape == (0,)
