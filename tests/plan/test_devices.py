"""What is known of devices, and what is read of this machine."""

from pathlib import Path

import pytest

from octavo.plan import devices
from octavo.plan.devices import GIB, GPUS, MIB, Device


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


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("_dot_", ".").replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_a_container(tmp_path: Path) -> None:
    root = write(tmp_path, memory_dot_max="1073741824\n", memory_dot_current=f"{300 * MIB}\n",
                 memory_dot_stat=f"anon 5\ninactive_file {100 * MIB}\n",
                 cpu_dot_max="150000 100000\n")  # fmt: skip
    assert devices.memory_limit(root) == (GIB, 200 * MIB)
    assert devices.cpu_quota(root) == 1.5


def test_limits_of_an_older_kind_of_container(tmp_path: Path) -> None:
    root = write(tmp_path, memory__memory_dot_limit_in_bytes="2147483648", memory__memory_dot_usage_in_bytes="1000",
                 memory__memory_dot_stat="total_inactive_file 400\n",
                 cpu__cpu_dot_cfs_quota_us="50000", cpu__cpu_dot_cfs_period_us="100000")  # fmt: skip
    assert devices.memory_limit(root) == (2 * GIB, 600)
    assert devices.cpu_quota(root) == 0.5


def test_no_limits(tmp_path: Path) -> None:
    assert devices.memory_limit(tmp_path) is None
    assert devices.cpu_quota(tmp_path) is None
    write(tmp_path, memory_dot_max="max\n", cpu_dot_max="max 100000\n", cpu__cpu_dot_cfs_quota_us="-1", cpu__cpu_dot_cfs_period_us="100000",
          memory__memory_dot_limit_in_bytes=str(9223372036854771712))  # fmt: skip
    assert devices.memory_limit(tmp_path) is None
    assert devices.cpu_quota(tmp_path) is None
