"""Which device an engine plans for."""

import pytest
import torch

from octavo.host.nvml import Driver, Gpu
from octavo.plan import devices
from octavo.worker.device import detect

GPUS = tuple(Gpu(index, f"GPU-{index}", "", "NVIDIA H200", 150 << 30, (140 - index) << 30, 18, 90) for index in range(3))


@pytest.fixture
def driver(monkeypatch):
    """A machine with three GPUs on which nobody may ask CUDA for more than their number."""

    def context(*_):
        raise AssertionError("a context was made")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", context)
    monkeypatch.setattr(torch.cuda, "mem_get_info", context)
    monkeypatch.setattr(devices, "read_driver", lambda: Driver("580", (13, 0), GPUS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_an_engine_whose_workers_drive_the_gpus_makes_no_context(driver):
    found = detect(num_needed=2, first=1)
    assert (found.kind, found.memory_bytes, found.free_bytes, found.sm) == ("cuda", 150 << 30, 139 << 30, 90)


def test_what_is_hidden_is_not_counted(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert detect(num_needed=2).free_bytes == 138 << 30


def test_an_engine_that_drives_its_gpu_asks_cuda(driver):
    with pytest.raises(AssertionError, match="context"):
        detect()


def test_too_few_are_named(driver):
    with pytest.raises(ValueError, match="4 GPUs are needed for this layout, and there are 3"):
        detect(num_needed=2, first=2)
