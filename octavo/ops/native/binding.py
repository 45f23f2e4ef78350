"""Loads the C kernels and runs them over a team of threads. One call runs one operation over all threads.

Arguments travel as one packed record of pointers, integers and floats (`struct.Struct`): the C struct of the same fields.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import torch

from octavo import env
from octavo.host.cpu_places import own_place
from octavo.ops.native.build import CompilerError, Variant, build, machine_variants

logger = logging.getLogger(__name__)

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # `enum dtype` in simd.h
KV_DTYPES = {**DTYPES, torch.int8: 3, torch.float8_e4m3fn: 4, torch.float8_e5m2: 5}


class Op(IntEnum):
    """Index of each operation in `kernels` of library.c."""

    LINEAR = 0
    PANELS = 1
    RMS_NORM = 2
    GATE = 3
    ROPE_AND_WRITE = 4
    ARGMAX = 5
    ATTENTION = 6
    DRAW = 7
    PACKED = 8
    DECODE_BATCH = 9
    NOTE_STEP = 10
    PACKED_ROWS = 11
    TABLE_ROWS = 12
    DRAW_ROWS = 13
    PACK_BLOCKS = 14
    PANEL_TILES = 15
    PACKED_TILES = 16
    EXPAND = 17
    PACK_PANELS = 18


def scale_places(scales: torch.Tensor | None, kv: torch.Tensor) -> tuple[int, ...]:
    """Where the scales of K and V lie: `struct scales` in kv_format.h."""
    if scales is None:
        return (0,) * 6
    each = scales.view(1, 2, 1, 1) if scales.dim() == 1 else scales
    return (each.data_ptr(), *each.expand(kv.shape[:4]).stride(), DTYPES[each.dtype])


class Native:
    """The kernels of one instruction set and the team of threads that runs them.

    `num_threads` counts the calling thread; `cores` pins thread i to cores[i]. `variant` None takes the best that the machine has. A
    forked child gets a team of its own with its first operation. Raises `CompilerError` where the library is neither there nor can be
    built, `ValueError` for a variant that this machine lacks.
    """

    def __init__(self, cache: Path, num_threads: int, cores: Sequence[int] | None = None, variant: str | None = None) -> None:
        self.num_threads, self._cores = num_threads, cores
        self.variant, self._library = _load(cache, variant)
        self._run = self._library.octavo_run
        self._tape: list[tuple[Op, bytes, bool]] | None = None  # of the recording under way
        self._team: int | None = None
        self._open()
        reference: weakref.ref[Native] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_team(reference))

    def _open(self) -> int:
        cores = (ctypes.c_int * self.num_threads)(*self._cores) if self._cores else None
        team: int | None = self._library.octavo_open(self.num_threads, cores)
        if team is None:
            raise OSError(f"could not start {self.num_threads} threads")
        self._team = team
        self._closing = weakref.finalize(self, self._library.octavo_close, team)
        return team

    def run(self, op: Op, args: bytes, alone: bool = False) -> None:
        """Run one operation to its end; `alone` keeps it on the calling thread, for work that is too small to share."""
        if self._tape is not None:
            self._tape.append((op, args, alone))
            return
        self._run(self._team or self._open(), op, args, alone)

    @contextmanager
    def recording(self) -> Iterator[list[tuple[Op, bytes, bool]]]:
        """Operations are noted, not run: what a `Tape` is made of."""
        self._tape = []
        try:
            yield self._tape
        finally:
            self._tape = None

    def replay(self, steps: ctypes.Array[ctypes.c_int64], count: int) -> None:
        """Run the operations of a `Tape`, by one call."""
        self._library.octavo_replay(self._team or self._open(), steps, count)

    def close(self) -> None:
        """End the threads. The next operation starts them anew."""
        self._closing()
        self._team = None


class Tape:
    """Recorded operations; calling it runs them. It keeps `memory`; all else that their arguments point to must live as long."""

    def __init__(self, native: Native, operations: Sequence[tuple[Op, bytes, bool]], memory: object) -> None:
        self._native, self._memory = native, memory
        self._args = [ctypes.create_string_buffer(args, len(args)) for _, args, _ in operations]
        words = [word for (op, _, alone), args in zip(operations, self._args) for word in (ctypes.addressof(args), int(op), int(alone))]
        self._steps = (ctypes.c_int64 * len(words))(*words)  # `struct recorded` in library.c

    def __call__(self) -> None:
        self._native.replay(self._steps, len(self._args))


def _forget_team(reference: weakref.ref[Native]) -> None:
    """In a forked child: the threads are not there, so neither is the team; its memory stays behind."""
    native = reference()
    if native is not None and native._team is not None:
        native._closing.detach()
        native._team = None


def _load(cache: Path, name: str | None) -> tuple[str, ctypes.CDLL]:
    """The variant of this name, or the best that both the machine runs and the compiler knows."""
    have = machine_variants()
    if name is not None and name not in have:
        raise ValueError(f"variant = {name!r} is not possible: this machine runs {', '.join(have)}")
    names = list(have) if name is None else [name]
    for choice in names:
        try:
            return choice, _declare(_open_library(cache, have[choice]))
        except CompilerError:
            if choice == names[-1]:
                raise
    raise AssertionError("every machine runs the plain variant")


def _open_library(cache: Path, variant: Variant) -> ctypes.CDLL:
    """One that a machine with a newer C library left behind is compiled anew."""
    try:
        return ctypes.CDLL(str(build(cache, variant)))
    except OSError:
        return ctypes.CDLL(str(build(cache, variant, anew=True)))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("open", pointer, [integer, ctypes.POINTER(integer)]),
        ("close", None, [pointer]),
        ("run", None, [pointer, integer, ctypes.c_char_p, integer]),
        ("replay", None, [pointer, pointer, ctypes.c_int64]),
    ):
        function = getattr(library, f"octavo_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def kernels_exist() -> bool:
    """Whether the kernels are there or could be built just now; no threads are started."""
    try:
        _load(env.cache_root(), None)
    except (CompilerError, OSError):
        return False
    return True


@functools.cache
def shared_native() -> Native | None:
    """The process's team over the cores it may use; None, with a line in the log, where the kernels cannot be had.

    Torch is left one thread: what remains for it is small, and its own waiting threads would take the cores from the team.
    """
    try:
        place = own_place()
        native = Native(env.cache_root(), place.num_threads, place.cores if place.pinned else None)
    except (CompilerError, OSError) as error:
        logger.warning("no C kernels, so operations run in torch, several times slower: %s", error)
        return None
    torch.set_num_threads(1)
    logger.info("C kernels for %s: %s", native.variant, place)
    return native
