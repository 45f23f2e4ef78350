"""The walk that turns declared layers into ones that can run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import nn

from octavo.layers.env import Bound, Env


def bound_modules(model: nn.Module) -> Iterator[tuple[str, Bound]]:
    """The modules that declare something, with their paths."""
    for path, module in model.named_modules():
        if hasattr(module, "bind"):
            yield path, cast("Bound", module)


def materialize(model: nn.Module, env: Env) -> None:
    """Give every layer its parameters (allocated, not filled), operations, scheme, group and attention backend."""
    for path, module in bound_modules(model):
        module.bind(path, env)


def finish(model: nn.Module) -> None:
    """Once, when all weights are in: let every layer lay them out for its operations."""
    with torch.no_grad():
        for _, module in bound_modules(model):
            module.finish()
