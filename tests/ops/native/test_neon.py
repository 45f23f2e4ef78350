"""The kernels for another machine, compiled across and run by an emulator: all sources compile, and packed products are right."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from octavo.ops.native.build import FLAGS, SOURCE, VARIANTS
from octavo.ops.packed_linear import packed_linear, round_groups
from tests.ops.native.test_packed import KINDS, weights

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which(COMPILER) or not shutil.which(EMULATOR):
        pytest.skip(f"{COMPILER} or {EMULATOR} is not installed (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    variant = next(variant for variant in VARIANTS if variant.name == "dotprod")
    made = tmp_path_factory.mktemp("neon") / variant.name
    flags = [flag for flag in (*FLAGS, *variant.flags) if flag not in ("-shared", "-fPIC")]
    sources = [Path(__file__).parent / "neon.c", SOURCE / "library.c", SOURCE / "team.c"]
    subprocess.run([COMPILER, "-static", *flags, "-O1", *map(str, sources), "-lm", "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize(("bits", "with_offset"), KINDS)
def test_packed_products(program: Path, bits: int, with_offset: bool) -> None:
    torch.manual_seed(0)
    for m, n, k in ((1, 50, 96), (7, 131, 64), (70, 32, 96)):
        weight = weights(n, k, bits, with_offset)[0]
        x = torch.randn(m, k) * torch.logspace(-1, 1, m).unsqueeze(1)
        packing = 2 if bits == 8 else int(with_offset)
        given = struct.pack("4q", m, n, k, packing) + b"".join(part.numpy().tobytes() for part in (x, weight.codes, weight.scales))
        done = subprocess.run([EMULATOR, str(program)], input=given, capture_output=True, check=True, timeout=60)
        got = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(m, n)
        torch.testing.assert_close(got, packed_linear(round_groups(x), weight, None), rtol=1e-4, atol=1e-4)
