"""What a device can do, as plain numbers: a table of common GPUs, and this machine's CPU. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from octavo import env
from octavo.host.cgroup import memory_limit
from octavo.host.cores import usable_cores
from octavo.host.files import text_of
from octavo.host.nvml import read_driver, visible

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One accelerator, or the CPU of a machine. Rates are of dense matrices at the maker's boost clock."""

    name: str
    kind: Literal["cuda", "cpu"]
    memory_bytes: int
    free_bytes: int
    bandwidth_bytes_s: float = 0.0  # of its memory; 0: not known
    bf16_flops: float = 0.0  # 0: not known
    fp8_flops: float = 0.0
    sm: int = 0  # compute capability times ten; 0 on CPU
    cores: int = 0  # that this process may use; 0 on GPU
    fast_dtypes: tuple[str, ...] = ("float32",)  # formats that matrix products run fast in
    link_bytes_s: float = 0.0  # to another such device of its host, in one direction; 0: not known
    packed_products: bool = False  # whether products with packed weights have a kernel

    @staticmethod
    def cpu() -> Device:
        """The CPU of this machine, within the limits of its container."""
        total, free = _host_memory()
        return Device("cpu", "cpu", total, free, cores=usable_cores(), fast_dtypes=_fast_dtypes(_cpu_features()), packed_products=True)

    @staticmethod
    def cuda(name: str, memory_bytes: int, free_bytes: int, sm: int) -> Device:
        """A GPU as its driver describes it; rates come from the table where it is known."""
        base = GPUS.get(table_name(name)) or Device(name, "cuda", memory_bytes, free_bytes)
        formats = ("bfloat16", "float16") if sm >= 80 else ("float16",)
        return replace(base, name=name, memory_bytes=memory_bytes, free_bytes=free_bytes, sm=sm, fast_dtypes=formats)

    @staticmethod
    def here(number: int = 0) -> tuple[Device, int]:
        """This machine's GPU of that number, as its driver tells, and how many there are; its CPU where there is none."""
        driver = read_driver()
        gpus = visible(driver.gpus, env.CUDA_VISIBLE_DEVICES.get()) if driver else []
        if number >= len(gpus):
            return Device.cpu(), 1
        gpu = gpus[number]
        found = Device.cuda(gpu.name, gpu.total_bytes, gpu.free_bytes, gpu.sm)
        return replace(found, link_bytes_s=found.link_bytes_s if gpu.num_links else min(found.link_bytes_s, PCIE_BYTES_S)), len(gpus)

    @property
    def has_fast_links(self) -> bool:
        """Whether what links it to others is faster than the bus; taken to be so where it is not known."""
        return not self.link_bytes_s or self.link_bytes_s > PCIE_BYTES_S

    @staticmethod
    def named(name: str) -> Device:
        """A GPU of the table, `cpu`, or `here`. Raises `ValueError` with the names that are known."""
        if name.lower() == "here":
            return Device.here()[0]
        if name.lower() == "cpu":
            return Device.cpu()
        try:
            return GPUS[name.lower()]
        except KeyError:
            raise ValueError(f"device {name!r} is not known; use here, cpu, {', '.join(GPUS)}") from None


def _gpu(
    name: str, mib: int, terabytes_s: float, bf16_teraflops: float, sm: int, fp8_teraflops: float = 0.0, link_gigabytes_s: float = 32
) -> Device:
    formats = ("bfloat16", "float16") if sm >= 80 else ("float16",)
    memory, bf16, fp8 = mib * MIB, bf16_teraflops * 1e12, fp8_teraflops * 1e12
    return Device(name, "cuda", memory, memory, terabytes_s * 1e12, bf16, fp8, sm, 0, formats, link_gigabytes_s * 1e9)


PCIE_BYTES_S = 64e9  # of 16 lanes of the fifth generation, in one direction; what is faster is NVLink

GPUS: dict[str, Device] = {
    device.name: device
    for device in (  # memory as the driver reports it; rates from the makers' data sheets, without sparsity; links in one direction
        _gpu("b200", 183_359, 8.0, 2250, 100, 4500, 900),
        _gpu("h200", 143_771, 4.8, 989, 90, 1979, 450),
        _gpu("h100-nvl", 95_830, 3.9, 835, 90, 1671, 300),
        _gpu("h100-pcie", 81_559, 2.0, 756, 90, 1513, 64),
        _gpu("h100", 81_559, 3.35, 989, 90, 1979, 450),
        _gpu("h20", 97_871, 4.0, 148, 90, 296, 450),
        _gpu("a100-40gb", 40_960, 1.555, 312, 80, 0, 300),
        _gpu("a100", 81_920, 2.039, 312, 80, 0, 300),
        _gpu("l40s", 46_068, 0.864, 362, 89, 733),
        _gpu("l4", 23_034, 0.3, 121, 89, 242),
        _gpu("a10g", 23_028, 0.6, 70, 86),
        _gpu("a6000", 49_140, 0.768, 155, 86),
        _gpu("t4", 15_360, 0.32, 65, 75, 0, 16),
        _gpu("rtx-5090", 32_607, 1.792, 210, 120, 419, 64),
        _gpu("rtx-4090", 24_564, 1.008, 165, 89, 330),
        _gpu("rtx-3090", 24_576, 0.936, 71, 86),
    )
}


def table_name(name: str) -> str:
    """The table's name of a GPU whose driver calls it so ("NVIDIA H200" is h200); where it is not in the table, the driver's."""
    words = set(name.lower().replace("-", " ").split())
    return next((key for key in GPUS if words.issuperset(key.split("-"))), name)


def _host_memory() -> tuple[int, int]:
    """(total, free) bytes, the container's where they are less."""
    rows = dict(line.split(":", 1) for line in text_of(Path("/proc/meminfo")).splitlines() if ":" in line)
    if "MemTotal" in rows:
        total, free = (int(rows[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = total // 2
    limit = memory_limit()
    if limit is not None:
        total, free = min(total, limit[0]), min(free, limit[0] - limit[1])
    return total, max(0, free)


def _cpu_features() -> frozenset[str]:
    for line in text_of(Path("/proc/cpuinfo")).splitlines():
        if line.lower().startswith(("flags", "features")):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def _fast_dtypes(features: frozenset[str]) -> tuple[str, ...]:
    bf16 = features & {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's
    return ("bfloat16", "float32") if bf16 else ("float32",)
