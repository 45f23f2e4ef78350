"""Kernels compiled ahead, here or before, are found by a launch's key. In processes without Triton's interpreter; no card is needed."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not on this machine")

import triton.language as tl

from octavo.ops.triton.known import known_kernels

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from pathlib import Path
from zipfile import ZipFile
from triton import knobs
from bench.gpu import build_kernels
from octavo.ops.triton import built, known, precompile
from octavo.ops.triton.cache import use_cache_folder

root = Path(sys.argv[1])
kernel = next(kernel for kernel in known.known_kernels() if kernel.name == "_embedding")
precompile.known_kernels = known.known_kernels = lambda: [kernel]
compiled = []
knobs.compilation.listener = lambda **about: compiled.append(about["cache_hit"])

def start(name, folder):
    precompile.Built = lambda sm: built.Built(sm, folder)
    cache = use_cache_folder(root / name)
    precompile.start(cache, 90, 2).wait()
    assert len(list(cache.rglob("*.cubin"))) == 1, name
    assert list(cache.glob("known-*")), "no stamp"
    return cache

def is_found(cache):
    knobs.cache.dir = str(cache)
    compiled.clear()
    precompile.compile_one(kernel, 90)
    return compiled == [True]

cache = start("compiled here", root / "nothing")
assert is_found(cache)
assert precompile.start(cache, 90, 2)._pids == ()  # not a second time
built.FOLDER = root / "built"
sys.argv[1:] = ["90"]
build_kernels.main()
assert b"/octavo/" not in ZipFile(root / "built/sm90.zip").read(ZipFile(root / "built/sm90.zip").namelist()[0]), "a path of this machine"
cache = start("compiled before", root / "built")
assert precompile.start(cache, 90, 2)._pids == ()
assert is_found(cache)
use_cache_folder(root / "changed")
changed = known.Kernel(kernel.module, kernel.name, kernel.data.replace("1024", "512"))
assert built.Built(90, root / "built").lay(kernel) and not built.Built(90, root / "built").lay(changed)
"""

ON_LIST = """
import sys
from bench.gpu.record_kernels import record
from octavo.ops.triton.known import known_kernels
missing = record(*sys.argv[1:], workloads=()).keys() - {f"{kernel.module}.{kernel.name} {kernel.data}" for kernel in known_kernels()}
assert not missing, sorted(missing)
"""


def run(script: str, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, env=environment, timeout=300, cwd=ROOT)


def test_kernels_compiled_ahead_are_found(tmp_path):
    run(SCRIPT, str(tmp_path))


@pytest.mark.parametrize(("model", "place"), [("qwen3-0.6b", "alone"), ("qwen3-30b-a3b", "EP 2, rank 1")])
def test_a_start_runs_no_kernel_that_is_not_on_the_list(model, place):
    """If one is missing, `python bench/gpu/record_kernels.py` writes the list anew."""
    run(ON_LIST, f"bench/models/{model}", place)


def test_the_list_knows_the_kernels_as_they_are():
    for kernel in known_kernels():
        function = getattr(importlib.import_module(kernel.module), kernel.name)
        assert list(kernel.signature) == list(function.arg_names), kernel.name
        types = [value for value in kernel.source().constants.values() if isinstance(value, tl.dtype)]
        assert not types, f"{kernel.name}: Triton's cache takes {types} and strings of that name for one"
