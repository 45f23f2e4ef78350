"""Compiles the known kernels for a compute capability into the package: `octavo/ops/triton/built/sm90.zip`. No card is needed.

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


def main() -> None:
    from octavo.ops.triton.built import FOLDER
    from octavo.ops.triton.known import known_kernels

    FOLDER.mkdir(exist_ok=True)
    for sm in map(int, sys.argv[1:] or ["90"]):
        begin_s, count = time.monotonic(), len(known_kernels())
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
            made = sorted(processes.map(compile_one, range(count), [sm] * count))
        path = FOLDER / f"sm{sm}.zip"
        with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=9) as packed:
            for name, binary, noted in made:
                packed.writestr(ZipInfo(f"{name}.cubin"), binary, ZIP_DEFLATED)  # without a date: the same kernels give the same file
                packed.writestr(ZipInfo(f"{name}.json"), noted, ZIP_DEFLATED)
        print(f"{path.name}: {count} kernels, {path.stat().st_size / 1e6:.2f} MB, {time.monotonic() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
