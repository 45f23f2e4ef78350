"""Tensors of a checkpoint before they are read: shape, type and place on disk, their bytes behind a memory map."""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # torch is imported where a tensor is loaded: opening a checkpoint does without it
    import torch

    from octavo.ops.select import ExpandBlocks

DTYPES: Mapping[str, str] = {  # storage type -> torch dtype's name; every other storage type is a kind of GGUF blocks
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class CheckpointError(ValueError):
    """A model's files are missing, damaged or of a kind that is not supported; the text names the file and what to do."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor under its Hugging Face name, read when asked for.

    `interleaved_heads` says that the rows of each of so many heads lie in GGUF's Llama order (the two halves of a rotary pair side by
    side) and are put back; `shift` is added to every value (GGUF stores Gemma's norm weights with 1 added).
    """

    shape: tuple[int, ...]
    storage: str  # how it lies on disk: a key of DTYPES or a kind of GGUF blocks
    data: np.ndarray  # [num_bytes] uint8
    interleaved_heads: int = 0
    shift: float = 0.0

    @property
    def quantization(self) -> str | None:
        """The kind of packed blocks ("Q4_1"), None for plain numbers."""
        return None if self.storage in DTYPES else self.storage

    @property
    def dtype(self) -> str:
        """The torch dtype's name that `load()` gives when not told another."""
        return DTYPES.get(self.storage, "float32")

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.data.nbytes

    def raw(self) -> np.ndarray:
        """The stored bytes in row order, uint8 [rows, bytes a row]; packed blocks stay packed. Shares the memory map unless rows move."""
        num_rows = math.prod(self.shape[:-1])
        rows = self.data.reshape(num_rows, self.num_bytes // max(num_rows, 1))
        if not self.interleaved_heads:
            return rows
        pairs = self.data.reshape(self.interleaved_heads, -1, 2, self.num_bytes // self.shape[0])  # [heads, head_dim / 2, 2, bytes]
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def blocks(self) -> LazyTensor:
        """A packed matrix as the bytes it lies in: [rows, blocks a row, block bytes] uint8."""
        assert self.quantization is not None, "plain numbers have no blocks"
        assert not self.shift, "what is in blocks is not shifted"
        num_blocks = self.num_values // (256 if self.storage.endswith("_K") else 32)
        rows = math.prod(self.shape[:-1])
        return replace(self, shape=(rows, num_blocks // rows, self.num_bytes // num_blocks), storage="U8")

    def load(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values as a CPU tensor of `shape`. Where nothing is converted it shares the private memory map: cut first, then copy."""
        import torch

        raw = torch.from_numpy(self.raw())
        if self.quantization is not None:
            from octavo.ops.expand_blocks import dequantize

            values = dequantize(raw, self.storage, self.num_values, torch.float32 if self.shift else dtype or torch.float32)
        else:
            stored = getattr(torch, DTYPES[self.storage])
            if raw.data_ptr() % stored.itemsize:
                raw = raw.clone()
            values = raw.reshape(-1).view(stored)
        if self.shift:
            values = values + self.shift
        return values.to(dtype or values.dtype).reshape(self.shape)

    def expand_into(self, place: torch.Tensor, expand: ExpandBlocks) -> torch.Tensor:
        """The values of a packed tensor, written by `expand` where they are to stay: the place, of as many numbers of any type."""
        import torch

        assert self.quantization is not None, "plain numbers have no blocks"
        expand(torch.from_numpy(self.raw()), self.quantization, place)
        return place

    def drop_pages(self) -> None:
        """Return the pages that the tensor lies in to the system. Where it is read again they come from the file again."""
        mapped = _base(self.data)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            first = self.data.ctypes.data - np.frombuffer(mapped, np.uint8, 1).ctypes.data
            start = first // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, start, first + self.num_bytes - start)


@dataclass(frozen=True)
class LoadReport:
    """What loading took. The rate counts bytes on disk."""

    num_tensors: int = 0
    num_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / max(self.elapsed_s, 1e-9)

    def __str__(self) -> str:
        return f"{self.num_tensors} tensors, {self.num_bytes / 1e9:.3f} GB in {self.elapsed_s:.2f} s ({self.bytes_per_s / 1e9:.2f} GB/s)"


class Loader:
    """Gives tensors by name, in order, while threads read and convert the next ones. `report` counts what has been given so far.

    Packed tensors that have one of `places` are written there by `expand`, and given as what lies there.

    The pages of a tensor's file are given back when the next one is asked for: a process holds those of a few tensors, not of the files.
    """

    def __init__(
        self,
        tensors: Mapping[str, LazyTensor],
        dtype: torch.dtype | None = None,
        places: Mapping[str, torch.Tensor] | None = None,
        expand: ExpandBlocks | None = None,
    ) -> None:
        self.tensors, self.dtype, self.places, self.expand = tensors, dtype, places or {}, expand
        self.report = LoadReport()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        started_s, num_threads = time.monotonic(), torch.get_num_threads()
        # As many tensors are worked on at once as there are threads, so each operation, the caller's too, keeps to its own thread.
        torch.set_num_threads(1)
        pool = ThreadPoolExecutor(num_threads, "octavo-load")
        try:
            coming = ((name, pool.submit(self._load, name)) for name in self.tensors)
            ahead = deque(islice(coming, 2 * num_threads))
            while ahead:
                name, future = ahead.popleft()
                value, done = future.result(), self.report
                num_bytes = done.num_bytes + self.tensors[name].num_bytes
                self.report = LoadReport(done.num_tensors + 1, num_bytes, time.monotonic() - started_s)
                yield name, value
                del value
                self.tensors[name].drop_pages()
                ahead.extend(islice(coming, 1))
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(num_threads)

    def _load(self, name: str) -> torch.Tensor:
        tensor, place = self.tensors[name], self.places.get(name)
        if place is None:
            return tensor.load(self.dtype)
        assert self.expand is not None
        return tensor.expand_into(place, self.expand)


def give_back(tensors: Iterable[LazyTensor]) -> None:
    """Return the pages of the tensors' files to the system. A tensor that is read again comes from the file again."""
    for mapped in {base for tensor in tensors if isinstance(base := _base(tensor.data), mmap.mmap)}:
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def trim_heap() -> None:
    """Return what was freed to the system, where the C library can (glibc)."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(ctypes.c_size_t(0))


def _base(array: np.ndarray) -> object:
    """What a view lies in, in the end."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base
