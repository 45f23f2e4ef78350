"""What is known of devices, and what is read of this machine."""

from dataclasses import replace

import pytest

from octavo.host.nvml import Driver, Gpu
from octavo.plan import devices
from octavo.plan.devices import GIB, GPUS, Device


@pytest.mark.parametrize("name", GPUS)
def test_numbers_of_the_table_are_in_their_units(name: str) -> None:
    device = Device.named(name)
    assert 10 * GIB < device.memory_bytes < 200 * GIB
    assert 0.2e12 < device.bandwidth_bytes_s < 10e12
    assert 50e12 < device.bf16_flops < 3e15
    assert device.fp8_flops == 0 or device.fp8_flops > device.bf16_flops
    assert (device.fp8_flops > 0) == (device.sm >= 89)
    assert ("bfloat16" in device.fast_dtypes) == (device.sm >= 80)


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="h200"):
        Device.named("h300")


def test_a_driver_s_description_finds_its_row() -> None:
    device = Device.cuda("NVIDIA H200", 140 * GIB, 139 * GIB, 90)
    assert device.bandwidth_bytes_s == GPUS["h200"].bandwidth_bytes_s
    assert (device.memory_bytes, device.free_bytes) == (140 * GIB, 139 * GIB)
    assert Device.cuda("NVIDIA A100-SXM4-40GB", 40 * GIB, 40 * GIB, 80).bandwidth_bytes_s == GPUS["a100-40gb"].bandwidth_bytes_s
    assert Device.cuda("Tesla T4", 15 * GIB, 15 * GIB, 75).fast_dtypes == ("float16",)
    assert Device.cuda("Something New", 15 * GIB, 15 * GIB, 130).bandwidth_bytes_s == 0


def test_this_machine() -> None:
    cpu = Device.cpu()
    assert cpu.cores >= 1
    assert 0 < cpu.free_bytes <= cpu.memory_bytes
    assert "float32" in cpu.fast_dtypes


@pytest.mark.parametrize(
    ("features", "fast"),
    [({"avx2"}, "float32"), ({"avx512f"}, "float32"), ({"avx512f", "avx512_bf16"}, "bfloat16"), ({"amx_bf16"}, "bfloat16"),
     ({"asimd", "bf16"}, "bfloat16")],
)  # fmt: skip
def test_bfloat16_only_where_the_cpu_has_it(features: set[str], fast: str) -> None:
    assert devices._fast_dtypes(frozenset(features))[0] == fast


def test_a_machine_with_gpus_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(number, f"GPU-{number}", f"0000:0{number}:00.0", "NVIDIA H200", 140 * GIB, 100 * GIB, 18, 90) for number in range(4))
    monkeypatch.setattr(devices, "read_driver", lambda: Driver("580", (13, 0), gpus))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    found, count = Device.here()
    assert (count, found.kind, found.sm, found.free_bytes, found.has_fast_links) == (2, "cuda", 90, 100 * GIB, True)
    apart = tuple(replace(gpu, num_links=0) for gpu in gpus)
    monkeypatch.setattr(devices, "read_driver", lambda: Driver("580", (13, 0), apart))
    assert not Device.here()[0].has_fast_links
    monkeypatch.setattr(devices, "read_driver", lambda: None)
    assert Device.here()[0].kind == "cpu"


def test_links_of_the_table() -> None:
    fast = {name for name in GPUS if GPUS[name].has_fast_links}
    assert fast == {"b200", "h200", "h100-nvl", "h100", "h20", "a100-40gb", "a100"}
