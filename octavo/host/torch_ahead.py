"""Torch's C++ libraries loaded by a thread while Python still imports other things: `import torch` then finds them there."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so")  # the second with all that it needs of CUDA


def load_torch_ahead() -> None:
    """Return at once. Where there is no torch, or the library is called otherwise, nothing happens, and `import torch` tells."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        libraries = [os.fsencode(path) for name in LIBRARIES if (path := Path(folder) / "lib" / name).is_file()]
        threading.Thread(target=_load, args=(libraries,), daemon=True).start()


def _load(libraries: Sequence[bytes]) -> None:
    """By dlopen as a foreign function, which leaves the interpreter to other threads; `ctypes.CDLL` would hold it."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    for library in libraries:
        dlopen(library, os.RTLD_NOW | os.RTLD_LOCAL)
