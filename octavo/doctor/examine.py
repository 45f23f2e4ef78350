"""Reads the facts of this machine and runs every check on them."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from octavo import env
from octavo.config.parallel import ParallelConfig
from octavo.doctor import gpus, machine, software
from octavo.doctor.finding import Check, Facts, Finding
from octavo.host.cgroup import cpu_quota
from octavo.host.cores import allowed_cores
from octavo.host.nvml import read_driver, visible
from octavo.host.topology import Topology
from octavo.plan.devices import Device

CHECKS: dict[str, Check] = {**machine.CHECKS, **gpus.CHECKS, **software.CHECKS}
SHM = Path("/dev/shm")


def examine(facts: Facts) -> dict[str, Finding]:
    """What each check that applies here finds, by its name."""
    found = {name: check(facts) for name, check in CHECKS.items()}
    return {name: finding for name, finding in found.items() if finding is not None}


def read_facts(asked: ParallelConfig, host: str, port: int, hosts: int = 1) -> Facts:
    """Of this machine, for a server with these settings. Imports torch where it is installed."""
    driver = read_driver()
    seen = tuple(visible(driver.gpus, env.CUDA_VISIBLE_DEVICES.get())) if driver else ()
    cpu = Device.cpu()
    torch_cuda, torch_gpus = _torch()
    infiniband = Path("/sys/class/infiniband")
    return Facts(
        machine=Topology.read(), allowed=allowed_cores(), quota=cpu_quota(), total_bytes=cpu.memory_bytes, free_bytes=cpu.free_bytes,
        shm_bytes=shutil.disk_usage(SHM).total if SHM.exists() else None, memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        num_files=_limit(resource.RLIMIT_NOFILE), driver=driver, gpus=seen, gpu_nodes=tuple(gpu.node() for gpu in seen),
        infiniband=tuple(sorted(path.name for path in infiniband.iterdir())) if infiniband.exists() else (),
        peer_memory=Path("/sys/module/nvidia_peermem").exists(), torch_cuda=torch_cuda, torch_gpus=torch_gpus, versions=_versions(),
        cache_root=env.cache_root(), environment=env.everything(), host=host, port=port, tensor=asked.tensor_parallel_size,
        pipeline=asked.pipeline_parallel_size, data=asked.data_parallel_size, hosts=hosts, numa_bind=asked.numa_bind,
    )  # fmt: skip


def _limit(kind: int) -> int:
    soft, _ = resource.getrlimit(kind)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _torch() -> tuple[str | None, int]:
    """The CUDA that torch was built with, and how many GPUs it sees."""
    try:
        import torch
    except ImportError:
        return None, 0
    return torch.version.cuda, torch.cuda.device_count()


def _versions() -> dict[str, str]:
    from octavo import __version__

    found = {"octavo": __version__, "python": platform.python_version(), sys.platform: platform.machine()}
    for package in (*software.NEEDED, *software.SERVING):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
