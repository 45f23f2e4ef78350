"""What NVIDIA's driver says of its GPUs, without torch and without a CUDA context: NVML, the library behind nvidia-smi."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
PCI_DEVICES = Path("/sys/bus/pci/devices")
MAX_LINKS = 18  # of NVLink, on any GPU so far


class _Pci(ctypes.Structure):  # nvmlPciInfo_t
    _fields_ = (
        ("legacy", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint), ("device", ctypes.c_uint),
        ("kind", ctypes.c_uint), ("subsystem", ctypes.c_uint), ("address", ctypes.c_char * 32),
    )  # fmt: skip


class _Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver numbers it, which is by its place on the bus."""

    index: int
    uuid: str  # "GPU-..."
    address: str  # on the bus, as the kernel writes it: "0000:3b:00.0"
    name: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    num_links: int = 0  # of NVLink, up
    sm: int = 0  # compute capability times ten; 0: not told

    def node(self, root: Path = PCI_DEVICES) -> int | None:
        """The node of memory (NUMA) it is attached to; None where the system does not say."""
        try:
            node = int((root / self.address / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver and its GPUs."""

    version: str
    cuda: tuple[int, int]  # the newest CUDA it runs
    gpus: tuple[Gpu, ...]


def read_driver() -> Driver | None:
    """None where there is no driver, or it does not answer."""
    try:
        with _opened() as nvml:
            version, cuda, count = ctypes.create_string_buffer(80), ctypes.c_int(), ctypes.c_uint()
            _check(nvml.nvmlSystemGetDriverVersion(version, 80))
            _check(nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda)))
            _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
            gpus = tuple(_read(nvml, index) for index in range(count.value))
            return Driver(version.value.decode(), (cuda.value // 1000, cuda.value % 1000 // 10), gpus)
    except (OSError, AttributeError):
        return None


def visible(gpus: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: numbers or beginnings of UUIDs, up to the first that is none, as with CUDA."""
    if setting is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in (part.strip() for part in setting.split(",")):
        match = [gpu for gpu in gpus if (str(gpu.index) == word if word.isdecimal() else word and gpu.uuid.startswith(word))]
        if len(match) != 1 or match[0] in found:
            break
        found += match
    return found


@contextmanager
def _opened() -> Iterator[Any]:
    nvml = ctypes.CDLL(LIBRARY)
    _check(nvml.nvmlInit_v2())
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> Gpu:
    handle, pci, memory = ctypes.c_void_p(), _Pci(), _Memory()
    uuid, name = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    _check(nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)))
    _check(nvml.nvmlDeviceGetUUID(handle, uuid, 96))
    _check(nvml.nvmlDeviceGetName(handle, name, 96))
    _check(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    state, links = ctypes.c_uint(), 0
    for link in range(MAX_LINKS):
        links += nvml.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(state)) == 0 and state.value == 1
    major, minor = ctypes.c_int(), ctypes.c_int()
    told = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
    return Gpu(
        index, uuid.value.decode(), sysfs_address(pci.address.decode()), name.value.decode(), memory.total, memory.free, links,
        10 * major.value + minor.value if told else 0,
    )  # fmt: skip


def sysfs_address(address: str) -> str:
    """NVML writes eight digits of the domain and capitals, the kernel four and none."""
    domain, rest = address.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _check(code: int) -> None:
    if code:
        raise OSError(f"NVML answers {code}")
