"""Ranks of one host share what they read: `bench/load_ranks.py` on a small checkpoint of several shards, the page cache cold."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.models.safetensors_reader import read_safetensors
from octavo.models.tensors import Loader

ROOT = Path(__file__).parents[2]


def test_ranks_read_each_byte_once_and_hold_few_pages_of_the_files():
    command = [sys.executable, "-m", "bench.load_ranks", "--layers", "4", "--hidden", "768", "--shards", "4", "--cold"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True, timeout=120).stdout)
    assert found["disk_bytes"] < 1.1 * found["file_bytes"]
    assert len(found["beyond_bytes"]) == 2
    # A rank reads a half of most tensors: without giving pages back it would hold more than half of all four files.
    assert max(found["beyond_bytes"]) < 1.2 * found["largest_shard_bytes"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads what the kernel tells of a mapping")
def test_pages_are_given_back_tensor_by_tensor(tmp_path):
    from safetensors.torch import save_file

    num_tensors, values = 8, 1 << 20
    save_file({f"w{i}": torch.full((values,), float(i)) for i in range(num_tensors)}, tmp_path / "model.safetensors")
    tensors = read_safetensors(tmp_path / "model.safetensors")
    held = []
    for name, tensor in Loader(tensors):
        assert tensor.clone().sum() == float(name[1:]) * values
        held.append(mapped_bytes(tensors[name].data))
    assert max(held) < 2 * 4 * values, "the tensor at hand, and what the kernel maps around it"
    assert all(np.array_equal(tensor.raw().view(np.float32)[0, :1], [int(name[1:])]) for name, tensor in tensors.items())


def mapped_bytes(data: np.ndarray) -> int:
    """Resident bytes of the mapping that an array lies in."""
    address, inside = data.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (bounds := line.split()[0]):
            first, end = (int(bound, 16) for bound in bounds.split("-"))
            inside = first <= address < end
        elif inside and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the array is not mapped")
