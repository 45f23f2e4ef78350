"""Which device this process computes on, described as plain numbers for the planner."""

from __future__ import annotations

from dataclasses import replace

import torch

from octavo.ops.native.binding import kernels_exist
from octavo.plan.devices import Device


def detect(asked: str = "auto") -> Device:
    """The first GPU, or the CPU where there is none. `asked` is "auto", "cpu" or "cuda"; raises ValueError for a GPU that is not there."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda' is not possible: PyTorch sees no GPU here; use device = 'cpu' or auto")
    if asked == "cpu" or not torch.cuda.is_available():
        return replace(Device.cpu(), packed_products=kernels_exist())
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return Device.cuda(properties.name, total_bytes, free_bytes, 10 * properties.major + properties.minor)
