"""Compiles the C kernels with the machine's compiler, once for each version of the source and instruction set, into the cache folder.

A library holds the kernels for one instruction set. A folder filled by several machines serves them all, one that was moved to a machine of
another kind gets one library more, and a machine that has its library needs no compiler.

    python -m octavo.ops.native.build        # all instruction sets that the compiler knows, into the package: what a wheel then ships
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from octavo.miss import refuse_if_forced

SOURCE = Path(__file__).parent
SHIPPED = SOURCE / "built"
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
)  # fmt: skip


class CompilerError(RuntimeError):
    """The compiler is missing or refused the source; the message holds its first lines."""


@dataclass(frozen=True)
class Variant:
    """An instruction set: what the processor must have, by the names of /proc/cpuinfo, and the flags that make the compiler use it."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    machine: str | None = "x86_64"  # as `uname -m` says it; None: any


_V3 = frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c")
_V4 = (
    _V3[0] | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    (*_V3[1], "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"),
)
_BF16 = _V4[0] | {"avx512_bf16"}, (*_V4[1], "-mavx512bf16")
_TILES = frozenset({"amx_tile", "amx_bf16"})
PLAIN = Variant("plain", frozenset(), (), None)
VARIANTS = (  # the best first
    Variant("amx", _BF16[0] | _TILES, (*_BF16[1], "-mamx-tile", "-mamx-bf16")),
    Variant("avx512bf16", *_BF16),
    Variant("avx512", *_V4),
    Variant("avx2", *_V3),
    Variant("dotprod", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",), "aarch64"),
    PLAIN,
)


def machine_variants(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Variant]:
    """Those this machine runs, by name, the best first."""
    have: set[str] = set()
    if cpuinfo.exists():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        have.update(next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), ()))
    if have >= _TILES and not tiles_granted():
        have -= _TILES
    return {variant.name: variant for variant in VARIANTS if variant.needs <= have}


@functools.cache
def tiles_granted() -> bool:
    """Whether the system lets this process use AMX's tile registers, for which Linux wants to be asked: their contents make every thread's
    saved state larger. https://docs.kernel.org/arch/x86/xstate.html"""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def find_compiler() -> str:
    """Path of the C compiler: `cc`, else gcc or clang. Raises `CompilerError` if there is none."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return path
    raise CompilerError("no C compiler (cc, gcc or clang) on the PATH")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"{command[0]} failed: " + " | ".join(done.stderr.strip().splitlines()[:5]))


def library_name(variant: Variant, extra: tuple[str, ...] = ()) -> str:
    """What the library of this source and these flags is called."""
    key = hashlib.sha256()
    for file in sorted(SOURCE.glob("*.[ch]")):
        key.update(file.name.encode() + file.read_bytes())
    key.update(repr((os.uname().machine, FLAGS, variant.flags, extra)).encode())
    return f"octavo-{variant.name}-{key.hexdigest()[:16]}.so"


def build(cache: Path, variant: Variant, extra: tuple[str, ...] = (), anew: bool = False) -> Path:
    """Path of the compiled library; compiles it first if it neither lies in `cache` nor was shipped, or if it is wanted `anew`. `extra`
    flags are for tests (sanitizers). Raises `CompilerError`, or `CacheMiss` where compiling is forbidden.

    Several processes may build at once: each writes a file of its own and renames it into place.
    """
    target = cache / "native" / library_name(variant, extra)
    for there in (SHIPPED / target.name, target):
        if there.exists() and not anew:
            return there
    refuse_if_forced(f"the library of C kernels {target.name}")
    return compile_to(target, variant, extra)


def compile_to(target: Path, variant: Variant, extra: tuple[str, ...] = ()) -> Path:
    """Compile the library into the file `target`, which it returns."""
    compiler = find_compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        sources = [str(SOURCE / name) for name in ("library.c", "team.c")]
        _call(compiler, *FLAGS, *variant.flags, *extra, *sources, "-lm", "-o", str(made))
        made.replace(target)
    return target


def main() -> None:
    for old in SHIPPED.glob("*.so"):
        old.unlink()
    for variant in VARIANTS:
        if variant.machine in (None, os.uname().machine):
            print(compile_to(SHIPPED / library_name(variant), variant))


if __name__ == "__main__":
    main()
