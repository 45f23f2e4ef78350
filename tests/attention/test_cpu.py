"""The C attention against the torch reference: mixed batches, any block size, windows, soft caps, padding, split contexts,
every format of K and V."""

import random
from collections.abc import Iterator

import pytest
import torch

from octavo import env
from octavo.attention.backend import AttentionShape
from octavo.attention.cpu import NativeAttention
from octavo.attention.reference import ReferenceAttention
from octavo.context import Batch
from octavo.ops.kv_format import LARGEST, compressed
from octavo.ops.native.binding import Native
from octavo.ops.native.build import machine_variants

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@pytest.fixture(scope="module", params=machine_variants())
def backend(request: pytest.FixtureRequest) -> Iterator[NativeAttention]:
    native = Native(env.cache_root(), 3, variant=request.param)
    yield NativeAttention(native)
    native.close()


def batch_of(slices: list[tuple[int, int]], padding_tokens: int, padding_slices: int, rows: list[int]) -> Batch:
    """slices: (tokens in this step, context length after it)."""
    counts, lengths = [count for count, _ in slices], [length for _, length in slices]
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    starts = torch.cat((starts, starts[-1:].expand(padding_slices)))
    empty = torch.empty(0, dtype=torch.int64)
    return Batch(
        tokens=empty, positions=empty, starts=starts, lengths=torch.tensor(lengths + [0] * padding_slices, dtype=torch.int32),
        rows=torch.tensor(rows + [0] * padding_slices, dtype=torch.int32), slots=empty, sample_at=empty, sample_rows=empty,
        num_tokens=sum(counts) + padding_tokens, num_slices=len(slices), max_count=max(counts), max_length=max(lengths),
    )  # fmt: skip


def as_kept(values: torch.Tensor, dtype: torch.dtype, scaled: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """K and V [num_blocks, 2, block_tokens, kv_heads, head_dim] in a format, and their scales."""
    scales = torch.zeros(0, dtype=torch.float16) if dtype is torch.int8 else torch.tensor([0.5, 2.0])
    stored, new = compressed(values.transpose(1, 2), dtype, scales if scaled else None)
    return stored.transpose(1, 2), (scales if new is None else new.transpose(1, 2)) if scaled else None


def check(
    backend: NativeAttention,
    slices: list[tuple[int, int]],
    shape: AttentionShape,
    block_tokens: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype = torch.float32,
    padding: tuple[int, int] = (0, 0),
    tolerance: float | None = None,
    sinks: torch.Tensor | None = None,
    scaled: bool | None = None,
) -> None:
    """`scaled` None: as the KV format has it."""
    random.seed(len(slices))
    torch.manual_seed(len(slices))
    width = -(-max(length for _, length in slices) // block_tokens)
    rows = random.sample(range(len(slices) + 3), len(slices))
    table = torch.randint(0, 4, (len(slices) + 3, width + 2)).int()
    blocks = torch.randperm(len(slices) * width + 4).int()
    for index, row in enumerate(rows):
        table[row, :width] = blocks[index * width : (index + 1) * width]
    values = torch.randn(len(blocks), 2, block_tokens, shape.kv_heads, shape.head_dim)
    kv, scales = as_kept(values, kv_dtype, kv_dtype in LARGEST if scaled is None else scaled)
    batch = batch_of(slices, *padding, rows)
    q = torch.randn(batch.num_tokens, shape.heads, shape.head_dim).to(dtype)
    got = backend.run(backend.plan(batch, 0, table, block_tokens), q, kv, shape, scales, sinks)
    reference = ReferenceAttention()
    want = reference.run(reference.plan(batch, 0, table, block_tokens), q.float(), kv, shape, scales, sinks)
    tolerance = tolerance or TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


SMOL = AttentionShape(heads=9, kv_heads=3, head_dim=64, scale=0.125)
MIXED = [(1, 1), (1, 200), (7, 7), (60, 60), (33, 150), (1, 64), (2, 65), (130, 131)]


@pytest.mark.parametrize("block_tokens", [8, 16, 32, 64, 128])
def test_mixed_batches(backend: NativeAttention, block_tokens: int) -> None:
    check(backend, MIXED, SMOL, block_tokens)


@pytest.mark.parametrize(("dtype", "kv_dtype"), [
    (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.float32), (torch.float32, torch.float16),
])  # fmt: skip
def test_types(backend: NativeAttention, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check(backend, MIXED, SMOL, dtype=dtype, kv_dtype=kv_dtype)


@pytest.mark.parametrize("kv_dtype", LARGEST)
def test_compressed_formats(backend: NativeAttention, kv_dtype: torch.dtype) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(backend, MIXED, SMOL, 8, dtype, kv_dtype, padding=(3, 2))
    sinks = torch.tensor([0.0, 2.5, -1.0, 3.0])
    for head_dim, window in ((32, 40), (37, None), (5, 64), (24, None)):
        shape = AttentionShape(4, 2, head_dim, 0.2, window=window, softcap=4.0)
        check(backend, [*MIXED, (1, 700)], shape, kv_dtype=kv_dtype, sinks=sinks)
        check(backend, [(1, 900)], shape, 32, kv_dtype=kv_dtype, sinks=sinks)
    if kv_dtype is not torch.int8:
        check(backend, MIXED, SMOL, kv_dtype=kv_dtype, scaled=False)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (8, 2), (71, 1)])
@pytest.mark.parametrize("head_dim", [8, 24, 80, 128, 256])
def test_shapes(backend: NativeAttention, heads: int, kv_heads: int, head_dim: int) -> None:
    check(backend, [(1, 90), (5, 70), (40, 40)], AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5))


@pytest.mark.parametrize("window", [1, 5, 64, 100, 1000])
def test_windows(backend: NativeAttention, window: int) -> None:
    check(backend, [*MIXED, (1, 700)], AttentionShape(4, 2, 32, 0.2, window=window))
    check(backend, [(1, 900)], AttentionShape(2, 1, 32, 0.2, window=window))


def test_soft_cap(backend: NativeAttention) -> None:
    check(backend, MIXED, AttentionShape(4, 2, 32, 1.0, softcap=3.0))


@pytest.mark.parametrize("window", [None, 40])
def test_sinks(backend: NativeAttention, window: int | None) -> None:
    """Once a row, however its context is cut; one far above all scores takes all weight."""
    shape, sinks = AttentionShape(4, 2, 32, 0.2, window=window), torch.tensor([-3.0, 0.0, 2.5, 200.0])
    check(backend, MIXED, shape, sinks=sinks)
    check(backend, [(1, 900)], shape, sinks=sinks)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 640, 1001])
def test_one_long_sequence_is_split(backend: NativeAttention, length: int) -> None:
    check(backend, [(1, length)], SMOL)
    check(backend, [(1, length), (2, 30)], AttentionShape(2, 1, 16, 0.3))


def test_padding_is_zero_and_harmless(backend: NativeAttention) -> None:
    check(backend, [(3, 9), (1, 20)], SMOL, padding=(5, 3))
    check(backend, [(1, 300)], SMOL, padding=(2, 2))


def test_extreme_scores_stay_finite(backend: NativeAttention) -> None:
    """Scores in the thousands, whose last bits the softmax blows up: a looser bound."""
    check(backend, [(20, 90), (1, 400)], AttentionShape(2, 2, 16, 100.0), tolerance=5e-3)
