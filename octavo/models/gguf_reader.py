"""The GGUF file format: header, metadata and where each tensor lies. Knows nothing of models; reads no weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Every count and offset is checked
against the file's size before it is used, so a damaged file costs neither memory nor more than an error with the place in it.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.tensors import CheckpointError

MAGIC = b"GGUF"
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class BlockType:
    """How a tensor's values are stored: `values` of them in each block of `num_bytes`."""

    name: str
    values: int
    num_bytes: int


BLOCK_TYPES: Mapping[int, BlockType] = {
    number: BlockType(name, values, num_bytes)
    for number, name, values, num_bytes in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (30, "BF16", 1, 2),
        (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
    )
}  # fmt: skip

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Mapping[int, tuple[str, str]] = {  # metadata type -> (struct code, numpy type)
    0: ("<B", "u1"), 1: ("<b", "i1"), 2: ("<H", "<u2"), 3: ("<h", "<i2"), 4: ("<I", "<u4"), 5: ("<i", "<i4"),
    6: ("<f", "<f4"), 7: ("<?", "?"), 10: ("<Q", "<u8"), 11: ("<q", "<i8"), 12: ("<d", "<f8"),
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the file. `shape` is in row-major order (GGUF itself lists the fastest dimension first)."""

    name: str
    shape: tuple[int, ...]
    block: BlockType
    offset: int  # bytes from the start of the file
    num_bytes: int


class Texts(Sequence[str]):
    """Texts of the file, each made when it is asked for: a vocabulary and its merges are many MB as Python objects, and are needed once."""

    def __init__(self, view: memoryview, starts: array[int], ends: array[int]) -> None:
        self._view, self._starts, self._ends = view, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: Any) -> Any:
        return str(self._view[self._starts[index] : self._ends[index]], "utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        view = self._view
        for start, end in zip(self._starts, self._ends):
            yield str(view[start:end], "utf-8", "replace")


@dataclass(frozen=True)
class GGUFFile:
    path: Path
    version: int
    metadata: Mapping[str, Any]  # arrays are `Texts`, numpy arrays (numbers) or lists (of arrays)
    tensors: Mapping[str, StoredTensor]
    data: np.ndarray  # [file bytes] uint8, a private memory map


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file. Raises `CheckpointError` naming the file and what is wrong with it."""
    try:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        data = np.memmap(path, dtype=np.uint8, mode="c")  # private pages: nothing can write to the file, and torch may share them
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    cursor = _Cursor(path, memoryview(data))  # pyright: ignore[reportArgumentType]
    return cursor.file(data)


class _Cursor:
    """A place in the header that moves forward. Every step is checked against the end of the file."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path, self.view, self.size, self.at = path, view, len(view), 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: not a sound GGUF file: {what} (at byte {self.at} of {self.size})")

    def need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.at:
            raise self.fail(f"{what} needs {num_bytes} bytes but the file ends before")

    def scalar(self, code: str, what: str) -> Any:
        width = struct.calcsize(code)
        self.need(width, what)
        (value,) = struct.unpack_from(code, self.view, self.at)
        self.at += width
        return value

    def text(self, what: str) -> str:
        length = self.scalar("<Q", what)
        self.need(length, what)
        value = str(self.view[self.at : self.at + length], "utf-8", "replace")
        self.at += length
        return value

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(what, depth)
        if kind not in SCALARS:
            raise self.fail(f"{what} has the unknown metadata type {kind}")
        return self.scalar(SCALARS[kind][0], what)

    def array(self, what: str, depth: int) -> Texts | list[Any] | np.ndarray:
        if depth >= MAX_ARRAY_DEPTH:
            raise self.fail(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        kind, count = self.scalar("<I", what), self.scalar("<Q", what)
        if kind in SCALARS:
            dtype = np.dtype(SCALARS[kind][1])
            self.need(count * dtype.itemsize, f"{what} ({count} values)")
            values = np.frombuffer(self.view, dtype, count, self.at).copy()
            self.at += count * dtype.itemsize
            return values
        self.need(count * 8, f"{what} ({count} entries)")  # an entry holds at least its own length
        if kind == STRING:
            return self.texts(count, what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]

    def texts(self, count: int, what: str) -> Texts:
        """Where each text lies; vocabularies have hundreds of thousands, so the loop is kept bare."""
        view, size, at, unpack = self.view, self.size, self.at, struct.Struct("<Q").unpack_from
        starts, ends = array("q"), array("q")
        for number in range(count):
            start = at + 8
            if start > size:
                raise self.fail(f"{what} is cut off after {number} of {count} texts")
            at = start + unpack(view, at)[0]
            if at > size:
                raise self.fail(f"{what}: text {number} of {count} runs past the end of the file")
            starts.append(start)
            ends.append(at)
        self.at = at
        return Texts(view, starts, ends)

    def file(self, data: np.ndarray) -> GGUFFile:
        self.need(24, "the header")
        if bytes(self.view[:4]) != MAGIC:
            raise self.fail(f"it starts with {bytes(self.view[:4])!r}, not {MAGIC!r}")
        self.at = 4
        version = self.scalar("<I", "the version")
        if version not in (2, 3):
            swapped = version & 0xFFFF == 0 and version != 0
            raise self.fail("it is big-endian, which is not supported" if swapped else f"version {version} is not 2 or 3")
        num_tensors, num_values = self.scalar("<Q", "the tensor count"), self.scalar("<Q", "the metadata count")
        self.need(num_values * 13, f"metadata of {num_values} entries")  # shortest entry: empty key, type, one byte
        self.need(num_tensors * 24, f"a list of {num_tensors} tensors")  # shortest entry: empty name, no dimension, type, offset
        metadata = self.metadata(num_values)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self.fail(f"general.alignment = {alignment!r} is not a power of two")
        listed = [self.listed() for _ in range(num_tensors)]
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, block, offset in listed:
            if name in tensors:
                raise self.fail(f"tensor {name!r} is listed twice")
            tensors[name] = self.placed(name, shape, block, start, offset, alignment)
        self.apart(tensors)
        return GGUFFile(self.path, version, metadata, tensors, data)

    def apart(self, tensors: Mapping[str, StoredTensor]) -> None:
        """No byte belongs to two tensors: so a file never takes more memory than its own size lets expect."""
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for one, following in pairwise(in_order):
            if one.offset + one.num_bytes > following.offset:
                raise self.fail(f"tensors {one.name!r} and {following.name!r} overlap at byte {following.offset}")

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.text("a metadata key")
            if key in found:
                raise self.fail(f"metadata key {key!r} is given twice")
            found[key] = self.value(self.scalar("<I", f"the type of {key!r}"), f"metadata {key!r}")
        return found

    def listed(self) -> tuple[str, tuple[int, ...], int, int]:
        """One entry of the tensor list: name, shape, type number, offset in the data section."""
        name = self.text("a tensor name")
        num_dimensions = self.scalar("<I", f"tensor {name!r}")
        if num_dimensions > MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {num_dimensions} dimensions, more than {MAX_DIMENSIONS}")
        shape = tuple(self.scalar("<Q", f"tensor {name!r}") for _ in range(num_dimensions))
        return name, shape[::-1], self.scalar("<I", f"tensor {name!r}"), self.scalar("<Q", f"tensor {name!r}")

    def placed(self, name: str, shape: tuple[int, ...], kind: int, start: int, offset: int, alignment: int) -> StoredTensor:
        block = BLOCK_TYPES.get(kind)
        if block is None:
            known = ", ".join(sorted(b.name for b in BLOCK_TYPES.values()))
            raise CheckpointError(f"{self.path}: tensor {name!r} is stored as GGML type {kind}, which is not supported; supported: {known}")
        if not math.prod(shape):
            raise self.fail(f"tensor {name!r} has the empty shape {shape}")
        row = shape[-1] if shape else 1
        if row % block.values:
            raise self.fail(f"tensor {name!r} has rows of {row} values, not a multiple of the {block.values} in a block of {block.name}")
        num_bytes = math.prod(shape) // block.values * block.num_bytes
        if offset % alignment:
            raise self.fail(f"tensor {name!r} lies at offset {offset}, not a multiple of {alignment}")
        if start + offset + num_bytes > self.size:
            raise self.fail(f"tensor {name!r} needs {num_bytes} bytes from byte {start + offset} on: the file is cut off")
        return StoredTensor(name, shape, block, start + offset, num_bytes)
