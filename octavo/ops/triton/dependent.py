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

LINE = tl.constexpr(128)  # bytes of the cache that are asked for at once


@triton.jit
def follow(PDL: tl.constexpr):
    """To be called before anything else: lets the next kernel be launched, and waits for the one ahead."""
    let_next(PDL)
    wait_for_ahead(PDL)


@triton.jit
def let_next(PDL: tl.constexpr):
    """First half of `follow`. Between the two, only what was written before the one ahead began may be read."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_ahead(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def ask_cache(base, offsets, WIDTH: tl.constexpr):
    """Ask the L2 cache for rows of WIDTH elements at `offsets` [N] from `base`. What they hold does not matter before they are loaded."""
    a_line: tl.constexpr = LINE * 8 // base.dtype.element_ty.primitive_bitwidth
    for start in tl.static_range(0, WIDTH, a_line):
        places = (base + offsets + start).to(tl.int64)
        tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1)


def launch(device: torch.device, early: bool = True) -> dict[str, Any]:
    """Arguments of a launch of a kernel that has `PDL` among its constants. Not `early`: after all that is ahead has ended."""
    return {"PDL": True, "launch_pdl": early} if supported(device) else {"PDL": False}


@cache
def supported(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
