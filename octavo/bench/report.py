"""What makes a figure worth something: on what device, with what versions, by what command, when."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "tokenizers", "triton")


def circumstances(argv: list[str], num_devices: int = 1) -> dict[str, Any]:
    """To be stored beside every result."""
    return {
        "command": "octavo " + " ".join(argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(num_devices),
        "versions": versions(),
    }


def device_name(num_gpus: int = 1) -> str:
    """The GPU where there is one, with how many are used, else the processor and the threads of the kernels on the cores that may be
    used."""
    import torch

    from octavo.host.cores import usable_cores
    from octavo.host.cpu_places import own_place

    if torch.cuda.is_available():
        return f"{num_gpus} x {torch.cuda.get_device_name()}" if num_gpus > 1 else torch.cuda.get_device_name()
    return f"{_processor()}, {own_place().num_threads} threads on {usable_cores()} cores"


def versions() -> dict[str, str]:
    from octavo import __version__

    found = {"octavo": __version__, "python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
