"""Compiles the known kernels for a compute capability into the package: `octavo/ops/triton/built/sm90.zip`. No card is needed.

Kernels that are there already, and still are what they would be, stay.

    python bench/gpu/build_kernels.py [SM ...]     default: 90
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

sys.path.insert(0, str(Path(__file__).parents[2]))


def compile_one(number: int, sm: int) -> tuple[str, bytes, str]:
    """The name, the binary, and Triton's notes, of one kernel of the list."""
    from triton import knobs

    from octavo.ops.triton.built import name_of
    from octavo.ops.triton.known import known_kernels
    from octavo.ops.triton.precompile import compile_one

    kernel = known_kernels()[number]
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        knobs.compilation.disable_line_info = True  # paths of this machine, and half of the bytes
        compiled = compile_one(kernel, sm)
    noted = {name: value for name, value in compiled.metadata._asdict().items() if name not in ("hash", "extern_libs")}
    return name_of(kernel, kernel.source()), compiled.asm["cubin"], json.dumps(noted, default=vars, sort_keys=True)


def kept(path: Path, names: set[str]) -> list[tuple[str, bytes, str]]:
    """Those of a file that is there, as `compile_one` gives them."""
    if not path.exists():
        return []
    with ZipFile(path) as packed:
        there = names.intersection(name.removesuffix(".json") for name in packed.namelist())
        return [(name, packed.read(f"{name}.cubin"), packed.read(f"{name}.json").decode()) for name in there]


def main() -> None:
    from octavo.ops.triton.built import FOLDER, name_of
    from octavo.ops.triton.known import known_kernels

    FOLDER.mkdir(exist_ok=True)
    names = [name_of(kernel, kernel.source()) for kernel in known_kernels()]
    for sm in map(int, sys.argv[1:] or ["90"]):
        begin_s, path = time.monotonic(), FOLDER / f"sm{sm}.zip"
        made = kept(path, set(names))
        missing = [number for number, name in enumerate(names) if name not in {one[0] for one in made}]
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
            made = sorted([*made, *processes.map(compile_one, missing, [sm] * len(missing))])
        with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=9) as packed:
            for name, binary, noted in made:
                packed.writestr(ZipInfo(f"{name}.cubin"), binary, ZIP_DEFLATED)  # without a date: the same kernels give the same file
                packed.writestr(ZipInfo(f"{name}.json"), noted, ZIP_DEFLATED)
        size = f"{len(names)} kernels, {len(missing)} of them compiled now, {path.stat().st_size / 1e6:.2f} MB"
        print(f"{path.name}: {size}, {time.monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
