"""What of a start on a GPU needs no torch: it goes on in threads while torch is imported, which takes the longest of all. No torch here."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from octavo import env

log = logging.getLogger(__name__)


class Early:
    """Work that was begun. `wait` before any process is forked, and before a kernel runs."""

    def __init__(self, clock: Callable[[], float], work: dict[str, Callable[[], object]]) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(max(len(work), 1))
        self._begun = {name: self._threads.submit(self._timed, one) for name, one in work.items()}

    def wait(self) -> list[tuple[str, float]]:
        """Seconds of each; what failed is left out, and will say why where it is needed."""
        self._threads.shutdown()
        return [(name, one.result()) for name, one in self._begun.items() if self._succeeded(name, one)]

    def _timed(self, work: Callable[[], object]) -> float:
        begin_s = self._clock()
        work()
        return self._clock() - begin_s

    def _succeeded(self, name: str, one: Future[float]) -> bool:
        if error := one.exception():
            log.debug("%s could not be done early: %r", name, error)
        return one.exception() is None


def begin(clock: Callable[[], float], rank: int = 0, kernels: bool = True) -> Early:
    """Begin for the GPU of this rank, where there is a driver; `kernels` says whether Triton's will run."""
    driver = _cuda()
    if driver is None:
        return Early(clock, {})
    triton = {"launchers": _launchers, "key of triton": _triton_key} if kernels else {}
    return Early(clock, {"CUDA context": lambda: _make_context(driver, rank), **triton})


def _cuda() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _make_context(driver: ctypes.CDLL, rank: int) -> None:
    """Make the device's primary context, which torch then uses."""
    env.load_kernels_lazily()
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _check(driver.cuInit(0))
    _check(driver.cuDeviceGetCount(ctypes.byref(count)))
    _check(driver.cuDeviceGet(ctypes.byref(device), rank % max(count.value, 1)))
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def _check(status: int) -> None:
    if status:
        raise OSError(f"the CUDA driver gave status {status}")


def _launchers() -> None:
    from octavo.ops.triton.launchers import make_ahead

    make_ahead()


def _triton_key() -> None:
    """Triton hashes its own library, 200 MB, once a process."""
    from triton.runtime.cache import triton_key

    triton_key()
