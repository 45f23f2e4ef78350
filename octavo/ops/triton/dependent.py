"""Programmatic dependent launch (sm_90 and later): a kernel is launched while the one ahead of it still ends.

What that saves is the gap between two kernels, about a microsecond each. A kernel that is launched so may touch nothing that is written on
the device before the one ahead has ended, which `follow` waits for. Waiting there is enough for all that ran before: the one ahead has
waited likewise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def follow(PDL: tl.constexpr):
    """To be called before anything else: lets the next kernel be launched, and waits for the one ahead."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


def launch(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch of a kernel that has `PDL` among its constants."""
    return {"PDL": True, "launch_pdl": True} if supported(device) else {"PDL": False}


@cache
def supported(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
