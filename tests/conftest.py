"""Triton kernels run in its interpreter where there is no GPU; that must be settled before they are imported."""

from __future__ import annotations

import os

import pytest
import torch

GPU = torch.cuda.is_available()

if not GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is a GPU, tests that take the `DEVICE` which is there are among those marked `gpu`."""
    for item in items if GPU else ():
        if hasattr(getattr(item, "module", None), "DEVICE"):
            item.add_marker("gpu")
