from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.models.checkpoint import open_checkpoint
from octavo.models.safetensors_reader import read_safetensors
from octavo.models.tensors import Loader, give_back


@pytest.fixture
def tensors(tmp_path):
    values = {f"t{i}": torch.full((100, i + 1), float(i)) for i in range(50)}
    save_file(values, tmp_path / "model.safetensors")
    return read_safetensors(tmp_path / "model.safetensors")


def test_a_loader_gives_every_tensor_in_order_and_counts_it(tensors):
    loader = Loader(tensors, torch.bfloat16)
    found = dict(loader)
    assert list(found) == list(tensors)
    assert all(values.dtype == torch.bfloat16 and bool((values == int(name[1:])).all()) for name, values in found.items())
    assert (loader.report.num_tensors, loader.report.num_bytes) == (50, sum(tensor.num_bytes for tensor in tensors.values()))
    assert loader.report.bytes_per_s > 0
    assert "50 tensors" in str(loader.report)
    assert "GB/s" in str(loader.report)


def test_without_a_dtype_tensors_keep_their_own(tensors):
    assert all(values.dtype == torch.float32 for _, values in Loader(tensors))


def test_loading_leaves_torchs_threads_as_they_were_also_when_it_ends_early(tensors):
    before = torch.get_num_threads()
    for name, _ in Loader(tensors):
        if name == "t3":
            break
    assert torch.get_num_threads() == before
    misshapen = {**tensors, "t9": replace(tensors["t9"], shape=(7, 7))}
    with pytest.raises(ValueError, match="shape"):
        list(Loader(misshapen))
    assert torch.get_num_threads() == before


def test_the_bundled_model_loads_whole():
    tensors = open_checkpoint("smollm2-135m").tensors()
    loader = Loader(tensors, torch.bfloat16)
    assert {name: values.shape for name, values in loader} == {name: tensor.shape for name, tensor in tensors.items()}
    assert loader.report.num_bytes == sum(tensor.num_bytes for tensor in tensors.values()) > 90e6


def test_pages_that_were_read_are_given_back_and_read_again(tensors, tmp_path):
    def resident_kb() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        return sum(int(next(row for row in lines if row.startswith("Rss:")).split()[1]) for line in lines if str(tmp_path) in line)

    before = {name: tensor.load().clone() for name, tensor in tensors.items()}
    assert resident_kb() >= sum(tensor.num_bytes for tensor in tensors.values()) >> 10
    give_back(tensors.values())
    assert resident_kb() == 0
    assert all(torch.equal(values, before[name]) for name, values in Loader(tensors))
