"""Records a step as a tape: what its operations would call in C, without running anything, and the memory that lies between them.

An operation is held if it is one of `Native.run`, a view, or an allocation; anything else that torch would do raises `NotHeld`, so a step
that a tape cannot repeat is found when it is recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.ops.native.binding import Native, Tape

T = TypeVar("T")
_NUMPY = {2: np.int16, 4: np.int32, 8: np.int64}  # by size of an element: the bits are what counts


class NotHeld(RuntimeError):
    """Torch was asked for something that a tape cannot repeat; the text names it."""


class Pool:
    """Memory of tapes. What a recorded step has let go of serves its later operations, and later tapes: they never run at once."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._free: dict[int, list[np.ndarray]] = {}  # by size

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        count = int(np.prod(shape))
        num_bytes = 1 << max(6, (count * dtype.itemsize - 1).bit_length())
        free = self._free.setdefault(num_bytes, [])
        block = free.pop() if free else self._new(num_bytes)
        lent = block.view(_NUMPY[dtype.itemsize])[:count]  # lives as long as the storage of a tensor on it
        weakref.finalize(lent, free.append, block)
        return torch.from_numpy(lent).view(dtype).view(list(shape))

    def _new(self, num_bytes: int) -> np.ndarray:
        memory = np.zeros(num_bytes + 64, np.uint8)
        self._blocks.append(memory)
        begin = -memory.ctypes.data % 64
        return memory[begin : begin + num_bytes]


class _OnlyHeld(TorchDispatchMode):
    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, at the first call, which takes seconds in the middle of somebody's answer."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.empty.memory_format:
            return self._pool.empty(args[0], (kwargs or {}).get("dtype") or torch.get_default_dtype())
        if func.is_view:
            return func(*args, **(kwargs or {}))
        raise NotHeld(str(func))


def record(native: Native, pool: Pool, step: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """What repeats `step`, and what `step` gave: tensors whose values each repetition replaces. Raises `NotHeld`."""
    with native.recording() as operations, _OnlyHeld(pool):
        given = step()
    return Tape(native, operations, pool), given
