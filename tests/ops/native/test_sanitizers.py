"""The C code under the address and undefined-behaviour sanitizers: all tests of the operations, in a process of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import env
from octavo.ops.native import build

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O1", "-DEMULATE_AMX")


@pytest.mark.timeout(900)
def test_the_operations_under_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Path(subprocess.run([build.find_compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip())
    if not runtime.is_absolute():
        pytest.skip("the compiler has no sanitizer runtime")
    variant = next(iter(build.machine_variants().values()))
    library = build.build(env.cache_root(), variant, FLAGS)
    tests = Path(__file__).parent
    files = [*(tests / f"test_{name}.py" for name in ("twins", "packed", "tiles")), tests.parent.parent / "attention" / "test_cpu.py"]
    code = (
        "import sys, pytest, torch; from octavo.ops.native import binding, build\n"
        "torch.set_num_threads(1)\n"
        "build.tiles_granted()\n"  # where a processor has them, each process must ask for itself
        f"binding.build = lambda cache, variant: {str(library)!r}\n"
        f"binding.machine_variants = lambda: {{{variant.name!r}: None}}\n"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-sx", "-p", "no:faulthandler", "-k", variant.name, *map(str, files)],
        env={**os.environ, "LD_PRELOAD": str(runtime), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(r"\d{2,} passed", done.stdout)
