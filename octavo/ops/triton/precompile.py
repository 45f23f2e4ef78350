"""Compiles the kernels that are known to be needed, in many processes at once, while the start goes on.

Which kernels those are was recorded on a card (`bench/gpu/record_kernels.py`): function, argument types and constants of every kernel that
ran. A kernel that is not on the list is compiled when it first runs, as always; so the list costs nothing where it does not fit.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo.ops.triton.launchers import KNOWN

log = logging.getLogger(__name__)

MOST_PROCESSES = 16


class Precompiling:
    """Processes at work. `wait` until they are done; they touch no device."""

    def __init__(self, pids: Sequence[int], stamp: Path) -> None:
        self._pids, self._stamp = pids, stamp

    def wait(self) -> None:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._pids]
        if codes and not any(codes):
            self._stamp.touch()


def start(folder: Path, sm: int, num_cores: int) -> Precompiling:
    """Begin to compile all known kernels for this compute capability into Triton's cache `folder`, unless that was done before."""
    data = KNOWN.read_bytes()
    stamp = folder / f"known-{hashlib.sha256(data).hexdigest()[:16]}-{triton.__version__}-sm{sm}"
    if stamp.exists():
        return Precompiling((), stamp)
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads(data)
    functions = [getattr(importlib.import_module(module), name) for module, name, _ in known]  # imported once, before the fork
    num_processes = max(1, min(MOST_PROCESSES, num_cores, len(known)))
    pids: list[int] = []
    for number in range(num_processes):
        pid = os.fork()
        if pid == 0:
            os._exit(_compile_share(functions[number::num_processes], [entry[2] for entry in known[number::num_processes]], sm))
        pids.append(pid)
    return Precompiling(pids, stamp)


def start_here(folder: Path) -> Callable[[], None]:
    """Begin for the current GPU, with the cores that this process may use; what it gives waits for the end."""
    major, minor = torch.cuda.get_device_capability()
    return start(folder, 10 * major + minor, len(os.sched_getaffinity(0))).wait


def _compile_share(functions: Sequence[Any], specialisations: Sequence[str], sm: int) -> int:
    """In a process of its own: 0 if all could be compiled. What cannot will say so when it runs."""
    failed = 0
    for function, data in zip(functions, specialisations):
        try:
            compile_one(function, data, sm)
        except Exception as error:
            failed = 1
            log.debug("%s could not be compiled ahead: %r", function, error)
    return failed


def compile_one(function: Any, data: str, sm: int) -> None:
    """Compile one kernel into the cache, under the key that a launch will look for. `data` is Triton's own specialisation data."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(data)["options"].items()}
    options.pop("extern_libs", None)  # paths of the machine that recorded it; without them Triton takes its own
    triton.compile(_source(function, data), target=GPUTarget("cuda", sm, 32), options=options)


def source_of(module: str, name: str, data: str) -> ASTSource:
    """An entry of the list as Triton's compiler and launcher take it."""
    return _source(getattr(importlib.import_module(module), name), data)


def _source(function: Any, data: str) -> ASTSource:
    about = json.loads(data)
    constants = {tuple(key): _constant(value) for key, value in zip(about["constant_keys"], about["constant_vals"])}
    attributes = {tuple(key): value for key, value in zip(about["attrs_keys"], about["attrs_vals"])}
    signature = {name: tuple(kind) if isinstance(kind, list) else kind for name, kind in about["signature"].items()}
    return ASTSource(function, signature, constants, attributes)


def _constant(value: Any) -> Any:
    """A constant as the kernel got it; its JSON form marks types and nested constants."""
    if triton.language.dtype.is_dtype(value):
        return triton.language.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return triton.language.constexpr(value["constexpr"])
    return value
