"""Torch's C++ library loaded by a thread while Python still imports other things: a fifth of `import torch`, which then finds it there."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from pathlib import Path


def load_torch_ahead() -> None:
    """Return at once. Where there is no torch, or the library is called otherwise, nothing happens, and `import torch` tells."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        library = Path(folder) / "lib" / "libtorch_cpu.so"
        if library.is_file():
            threading.Thread(target=_load, args=(os.fsencode(library),), daemon=True).start()


def _load(library: bytes) -> None:
    """By dlopen as a foreign function, which leaves the interpreter to other threads; `ctypes.CDLL` would hold it."""
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    dlopen(library, os.RTLD_NOW | os.RTLD_LOCAL)
