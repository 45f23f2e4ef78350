"""The kernels for another machine, compiled across and run by an emulator: every operation passes tests of its own there."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.overrides import TorchFunctionMode

from octavo.attention.backend import AttentionShape
from octavo.attention.cpu import NativeAttention
from octavo.ops.kv_format import LARGEST
from octavo.ops.native.binding import Native, Op
from octavo.ops.native.build import FLAGS, SOURCE, VARIANTS
from octavo.ops.native.twins import Twins
from octavo.ops.native.ways import TileRows
from tests.attention.test_cpu import check
from tests.ops.native import test_packed, test_record, test_twins

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
BF16 = torch.bfloat16


class Pointed(TorchFunctionMode):
    """Notes the memory of every tensor that is asked for its address."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.data_ptr:
            storage = args[0].untyped_storage()
            self.storages[storage.data_ptr()] = storage
        return func(*args, **(kwargs or {}))


class Emulated:
    """What `Twins` needs of a `Native`, whose kernels run elsewhere: memory goes there and comes back."""

    def __init__(self, program: Path, variant: str, pointed: Pointed) -> None:
        self.variant, self.ran = variant, set[Op]()
        self._pointed = pointed
        self._process = subprocess.Popen([EMULATOR, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, op: Op, args: bytes, alone: bool = False) -> None:
        process, storages = self._process, [one for one in self._pointed.storages.values() if one.nbytes()]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(struct.pack("4q", op, alone, len(args) // 8, len(storages)) + args)
        for storage in storages:
            process.stdin.write(struct.pack("2Q", storage.data_ptr(), storage.nbytes()))
            process.stdin.write(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
        process.stdin.flush()
        for storage in storages:
            changed = process.stdout.read(storage.nbytes())
            assert len(changed) == storage.nbytes(), f"{op.name} ended with status {process.wait()}"
            ctypes.memmove(storage.data_ptr(), changed, len(changed))
        self._pointed.storages.clear()
        self.ran.add(op)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module", params=["dotprod", "plain"])
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    if not shutil.which(COMPILER) or not shutil.which(EMULATOR):
        pytest.skip(f"{COMPILER} or {EMULATOR} is not installed (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    variant = next(variant for variant in VARIANTS if variant.name == request.param)
    made = tmp_path_factory.mktemp("neon") / variant.name
    flags = [flag for flag in (*FLAGS, *variant.flags) if flag not in ("-shared", "-fPIC")]
    sources = [Path(__file__).parent / "neon.c", SOURCE / "library.c", SOURCE / "team.c"]
    subprocess.run([COMPILER, "-static", *flags, *map(str, sources), "-lm", "-o", str(made)], check=True)
    with Pointed() as pointed:
        machine = Emulated(made, variant.name, pointed)
        yield machine
        machine.close()


TESTS: list[Callable[[Twins], None]] = [
    partial(test_twins.test_product_adds_to_the_residual, rows=3, scale=0.5, bias=torch.linspace(-1, 1, 48)),
    test_twins.test_linear_reads_rows_at_any_stride,
    test_twins.test_linear_passes_what_is_not_finite_on,
    *(partial(test_twins.test_blocks_are_expanded_to_the_same_bits, kind=kind, dtype=BF16) for kind in ("Q4_1", "Q6_K")),
    *(partial(test_twins.test_embedding_reads_packed_and_plain_tables, dtype=dtype, n=64) for dtype in test_twins.TYPES),
    *(partial(test_twins.test_norms, dtype=dtype, rows=9, n=100) for dtype in test_twins.TYPES),
    *(partial(test_twins.test_gates, dtype=dtype, rows=9, n=100) for dtype in test_twins.TYPES),
    test_twins.test_gates_at_the_ends_of_the_range,
    *(partial(test_twins.test_rope_and_write, dtype=dtype, kv_type=dtype, norm="head") for dtype in test_twins.TYPES),
    *(partial(test_twins.test_compressed_formats_are_written_to_the_same_bits, name=name) for name in ("int8", "fp8_e4m3", "fp8_e5m2")),
    test_twins.test_no_tokens_write_nothing,
    partial(test_twins.test_argmax, n=1000),
    partial(test_twins.test_draw, n=65),
    partial(test_twins.test_draw_rows, dtype=BF16),
    partial(test_packed.test_blocks_of_a_file_are_laid_out_alike, kind="Q4_1", block_bytes=20, n=50, groups=3),
    *(partial(test_packed.test_rows_of_an_embedding, bits=bits, with_offset=offset) for bits, offset in test_packed.KINDS),
    *(partial(test_packed.test_products, n=50, k=96, dtype=BF16, bits=bits, with_offset=offset) for bits, offset in test_packed.KINDS),
    test_packed.test_what_happens_around_a_product_happens_with_it,
    test_packed.test_rows_of_zeros_and_tiny_numbers,
    test_record.test_the_ends_of_a_step,
]  # fmt: skip


def test_every_operation(emulated: Emulated) -> None:
    torch.manual_seed(0)
    native = cast(Native, emulated)
    for test in TESTS:
        test(Twins(native))
    tiles = Twins(native, TileRows(0, 0))  # there are none, and vectors take their place
    tiles.linear(torch.randn(3, 32), tiles.pack_linear(torch.randn(16, 32)), None)
    partial(test_packed.test_products, n=16, k=32, dtype=BF16, bits=4, with_offset=True)(tiles)
    for kv_type in (*test_twins.TYPES, *LARGEST):
        dtype = kv_type if kv_type in test_twins.TYPES else torch.float32
        check(NativeAttention(native), [(1, 1), (9, 9), (1, 200), (33, 150)], AttentionShape(9, 3, 64, 0.125), 8, dtype, kv_type)
    assert emulated.ran == set(Op)
