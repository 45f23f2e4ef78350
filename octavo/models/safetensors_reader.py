"""Safetensors files: one, or shards with an index. Headers are checked against the file's size; no weight is read.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header, then the data).
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from octavo.models.tensors import DTYPES, CheckpointError, LazyTensor

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
INDEX = "model.safetensors.index.json"
ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}  # of the others: 1


def read_safetensors_folder(folder: Path) -> dict[str, LazyTensor]:
    """All tensors of a model folder by name. Raises `CheckpointError` for missing shards and tensors that are not where the index says."""
    index = folder / INDEX
    if not index.is_file():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise CheckpointError(_nothing_found(folder))
        # Without an index, model.safetensors is the model and others beside it (adapters, consolidated copies) are not.
        whole = [path for path in paths if path.name == "model.safetensors"]
        return _joined([(path, read_safetensors(path)) for path in whole or paths])
    places = _index(index)
    missing = sorted({name for name in places.values() if not (folder / name).is_file()})
    if missing:
        raise CheckpointError(f"{folder}: the index names files that are not there: {', '.join(missing)}")
    shards = {name: read_safetensors(folder / name) for name in dict.fromkeys(places.values())}
    absent = sorted(tensor for tensor, name in places.items() if tensor not in shards[name])
    if absent:
        raise CheckpointError(f"{index}: {len(absent)} tensors are not in the files it names, the first is {absent[0]!r}")
    return _joined([(folder / name, tensors) for name, tensors in shards.items()])


def read_safetensors(path: Path) -> dict[str, LazyTensor]:
    """The tensors of one file by name. Raises `CheckpointError`."""
    try:
        size = path.stat().st_size
        if size < 8:
            raise CheckpointError(f"{path}: the file has only {size} bytes; it may not be downloaded whole")
        data = np.memmap(path, dtype=np.uint8, mode="c")  # private pages: nothing can write to the file, and torch may share them
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > min(MAX_HEADER_BYTES, size - 8):
        pointer = data[:8].tobytes() == b"version "
        hint = "it is a Git LFS pointer, not the file itself" if pointer else "it is cut off or no safetensors file"
        raise CheckpointError(f"{path}: the header should have {length} bytes but the file has {size}: {hint}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    body = data[8 + length :]
    return {name: _tensor(path, name, entry, body) for name, entry in header.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, entry: Any, body: np.ndarray) -> LazyTensor:
    try:
        storage, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: the entry of tensor {name!r} is damaged") from error
    if not isinstance(storage, str) or storage not in DTYPES:
        raise CheckpointError(f"{path}: tensor {name!r} has type {storage!r}; supported: {', '.join(DTYPES)}")
    if any(not isinstance(number, int) or isinstance(number, bool) or number < 0 for number in (*shape, first, end)):
        raise CheckpointError(f"{path}: tensor {name!r} has a shape or place that is no whole number: {shape}, {first}, {end}")
    num_bytes = math.prod(shape) * ITEM_BYTES.get(storage, 1)
    if end - first != num_bytes or end > len(body):
        raise CheckpointError(
            f"{path}: tensor {name!r} of {num_bytes} bytes should lie at {first} to {end} of {len(body)} data bytes: "
            "the file is cut off or damaged"
        )
    return LazyTensor(shape=shape, storage=storage, data=body[first:end])


def _index(path: Path) -> dict[str, str]:
    try:
        places = json.loads(path.read_text("utf-8"))["weight_map"]
        sound = isinstance(places, dict) and all(isinstance(name, str) and Path(name).name == name for name in places.values())
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not an index of safetensors files: {error}") from error
    if not sound:
        raise CheckpointError(f"{path}: weight_map must give a file name of this folder for each tensor")
    return places


def _joined(files: list[tuple[Path, dict[str, LazyTensor]]]) -> dict[str, LazyTensor]:
    found: dict[str, LazyTensor] = {}
    for path, tensors in files:
        if twice := sorted(tensors.keys() & found.keys()):
            raise CheckpointError(f"{path}: tensor {twice[0]!r} is also in another file of the folder")
        found |= tensors
    return found


def _nothing_found(folder: Path) -> str:
    old = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(pattern))]
    text = f"{folder}: there are no .safetensors files"
    return f"{text}; {old[0]} is a pickle, which can run code when read: convert it to safetensors" if old else text
