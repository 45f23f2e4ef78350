"""Which device this process computes on, described as plain numbers for the planner."""

from __future__ import annotations

import platform
from dataclasses import replace

import torch

from octavo.ops.native.binding import kernels_exist
from octavo.plan.devices import Device


def detect(asked: str = "auto", num_needed: int = 1, first: int = 0) -> Device:
    """GPU number `first`, or the CPU where there is none. `asked` is "auto", "cpu" or "cuda"; raises ValueError if there are not
    `num_needed` GPUs from it on."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda' is not possible: PyTorch sees no GPU here; use device = 'cpu' or auto")
    if asked == "cpu" or not torch.cuda.is_available():
        return replace(Device.cpu(), packed_products=kernels_exist())
    if first + num_needed > torch.cuda.device_count():
        raise ValueError(f"{first + num_needed} GPUs are needed for this layout, and there are {torch.cuda.device_count()}")
    if num_needed > 1:  # workers drive them: asking CUDA would make a context on the first, in a process that never uses it
        told = Device.here(first)[0]
        if told.kind == "cuda" and told.sm:
            return told
    properties = torch.cuda.get_device_properties(first)
    free_bytes, total_bytes = torch.cuda.mem_get_info(first)
    return Device.cuda(properties.name, total_bytes, free_bytes, 10 * properties.major + properties.minor)


def take(kind: str, number: int) -> torch.device:
    """Make a rank's device the one of this process: the GPU of that number on its host. Raises ValueError where there is none."""
    if kind != "cuda":
        return torch.device(kind)
    if number >= torch.cuda.device_count():
        raise ValueError(f"{number + 1} GPUs are needed on this host ({platform.node()}), and there are {torch.cuda.device_count()}")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device
