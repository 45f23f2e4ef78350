"""Kernels that come with Octavo, compiled for common cards: a start lays them into Triton's cache, so that nothing need be compiled.

A file for each compute capability (`built/sm90.zip`, written by `bench/gpu/build_kernels.py`), in it two files a kernel: the binary, and
what Triton noted when it compiled. They are named after all that the binary hangs on: Triton's version, the kernel's source and that of
what it calls, types, constants and options. A kernel that has changed since is not found, and compiled as always.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
from triton.backends.compiler import GPUTarget
from triton.compiler import get_cache_key, make_backend  # pyright: ignore[reportPrivateImportUsage]
from triton.runtime.cache import get_cache_manager

from octavo.ops.triton.known import Kernel

FOLDER = Path(__file__).with_name("built")


def name_of(kernel: Kernel, source: Any) -> str:
    return hashlib.sha256(f"{triton.__version__} {source.hash()} {kernel.data}".encode()).hexdigest()[:32]


class Built:
    """The kernels for one compute capability."""

    def __init__(self, sm: int, folder: Path = FOLDER) -> None:
        path = folder / f"sm{sm}.zip"
        self._files = ZipFile(path) if path.exists() and not get_cache_invalidating_env_vars() else None
        self._names = set(self._files.namelist()) if self._files else set[str]()
        self._target = GPUTarget("cuda", sm, 32)

    def lay(self, kernel: Kernel) -> bool:
        """Lay a kernel where `triton.compile` with the same arguments will look; False if it is not among these."""
        if self._files is None:
            return False
        source = kernel.source()
        name = name_of(kernel, source)
        if f"{name}.json" not in self._names:
            return False
        backend = make_backend(self._target)
        options = backend.parse_options(kernel.options)
        key = hashlib.sha256(get_cache_key(source, backend, options, {}).encode()).hexdigest()
        cache = get_cache_manager(key)
        noted = {**json.loads(self._files.read(f"{name}.json")), "hash": key, "extern_libs": options.extern_libs}
        binary, about = f"{source.name}.cubin", f"{source.name}.json"
        laid = {binary: cache.put(self._files.read(f"{name}.cubin"), binary), about: cache.put(json.dumps(noted), about, binary=False)}
        cache.put_group(about, laid)
        return True
