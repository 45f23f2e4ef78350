"""Has the kernels that are known to be needed compiled before they run: laid into the cache as they come with Octavo, or else compiled in
many processes at once, while the start goes on.

A kernel that is not on the list is compiled when it first runs, as always; so the list costs nothing where it does not fit.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from octavo.ops.triton.built import Built
from octavo.ops.triton.known import KNOWN, Kernel, known_kernels

log = logging.getLogger(__name__)

MOST_PROCESSES = 16


class Precompiling:
    """Processes at work. `wait` until they are done; they touch no device."""

    def __init__(self, pids: Sequence[int], stamp: Path) -> None:
        self._pids, self._stamp = pids, stamp

    def wait(self) -> None:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self._pids]
        if not any(codes):
            self._stamp.touch()


def start(folder: Path, sm: int, num_cores: int) -> Precompiling:
    """Begin to have all known kernels for this compute capability in Triton's cache `folder`, unless that was done before."""
    stamp = folder / f"known-{hashlib.sha256(KNOWN.read_bytes()).hexdigest()[:16]}-{triton.__version__}-sm{sm}"
    if stamp.exists():
        return Precompiling((), stamp)
    folder.mkdir(parents=True, exist_ok=True)
    kernels, built = known_kernels(), Built(sm)
    missing = [kernel for kernel in kernels if not built.lay(kernel)]
    log.info("%d kernels come compiled, %d are compiled now", len(kernels) - len(missing), len(missing))
    num_processes = min(MOST_PROCESSES, num_cores, len(missing))
    pids: list[int] = []
    for number in range(num_processes):
        pid = os.fork()
        if pid == 0:
            os._exit(_compile_share(missing[number::num_processes], sm))
        pids.append(pid)
    return Precompiling(pids, stamp)


def start_here(folder: Path) -> Callable[[], None]:
    """Begin for the current GPU, with the cores that this process may use; what it gives waits for the end."""
    major, minor = torch.cuda.get_device_capability()
    return start(folder, 10 * major + minor, len(os.sched_getaffinity(0))).wait


def _compile_share(kernels: Sequence[Kernel], sm: int) -> int:
    """In a process of its own: 0 if all could be compiled. What cannot will say so when it runs."""
    failed = 0
    for kernel in kernels:
        try:
            compile_one(kernel, sm)
        except Exception as error:
            failed = 1
            log.debug("%s could not be compiled ahead: %r", kernel.name, error)
    return failed


def compile_one(kernel: Kernel, sm: int) -> triton.compiler.CompiledKernel:
    """Compile one kernel into the cache, under the key that a launch will look for."""
    return triton.compile(kernel.source(), target=GPUTarget("cuda", sm, 32), options=kernel.options)
