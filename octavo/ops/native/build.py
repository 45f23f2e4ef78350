"""Compiles the C kernels with the machine's compiler, once for each version of the source, into the cache folder.

The library holds a variant of every kernel for each instruction set of the processor family; which one runs is decided when it is
loaded. So a cache folder works on any machine of the family.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parent
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden")
_V4 = ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512")
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {  # by processor family: instruction set -> flags, the best first
    "x86_64": {"avx512bf16": (*_V4, "-mavx512bf16"), "avx512vnni": _V4, "avx2": ("-mavx2", "-mfma", "-mf16c"), "plain": ()},
}


class CompilerError(RuntimeError):
    """The compiler is missing or refused the source; the message holds its first lines."""


def variants() -> dict[str, tuple[str, ...]]:
    machine = platform.machine().lower()
    return VARIANTS.get({"amd64": "x86_64"}.get(machine, machine), {"plain": ()})


def find_compiler() -> str:
    """Path of the C compiler: `cc`, else gcc or clang. Raises `CompilerError` if there is none."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return path
    raise CompilerError("no C compiler (cc, gcc or clang) on the PATH")


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"{' '.join(command[:1])} failed: " + " | ".join(done.stderr.strip().splitlines()[:5]))
    return done.stdout


def library_path(cache: Path, compiler: str, extra: tuple[str, ...] = ()) -> Path:
    """Where the library of this source, compiler and these flags lies in the cache folder, whether it exists yet or not."""
    key = hashlib.sha256()
    for file in sorted(SOURCE.glob("*.[ch]")):
        key.update(file.name.encode() + file.read_bytes())
    key.update(repr((_call(compiler, "--version"), FLAGS, extra, variants())).encode())
    return cache / "native" / f"octavo-{key.hexdigest()[:16]}.so"


def build(cache: Path, extra: tuple[str, ...] = ()) -> Path:
    """Path of the compiled library; compiles it first if it is not in `cache`. `extra` flags are for tests (sanitizers).

    Several processes may build at once: each writes files of its own and renames the whole library into place.
    """
    compiler = find_compiler()
    target = library_path(cache, compiler, extra)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        place = Path(folder)
        common = (*FLAGS, *extra, f"-I{SOURCE}", f"-I{place}")

        def compile_variant(item: tuple[str, tuple[str, ...]]) -> str | None:
            name, flags = item
            try:
                _call(compiler, *common, *flags, f"-DVARIANT={name}", "-c", str(SOURCE / "kernels.c"), "-o", str(place / f"{name}.o"))
            except CompilerError:
                if name == "plain":
                    raise
                return None  # an older compiler does not know this instruction set
            return name

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            names = [name for name in pool.map(compile_variant, variants().items()) if name]
        (place / "variants.h").write_text("".join(f"VARIANT({name})\n" for name in names))
        objects = [str(place / f"{name}.o") for name in names]
        done = place / "library.so"
        _call(compiler, *common, "-shared", str(SOURCE / "library.c"), str(SOURCE / "team.c"), *objects, "-lm", "-o", str(done))
        done.replace(target)
    return target
