"""The walk that turns declared layers into ones that can run."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from octavo.layers.env import Env
from octavo.layers.layer import Layer


def layers_of(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """Everything in the model that is bound, by path."""
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            yield path, module


def materialize(model: nn.Module, env: Env) -> None:
    """Give every layer its parameters (allocated, not filled), operations, scheme, group and attention backend."""
    for path, layer in layers_of(model):
        layer.bind(path, env)


def finish(model: nn.Module) -> None:
    """Once, when all weights are in: let every layer lay them out for its operations."""
    with torch.no_grad():
        for _, layer in layers_of(model):
            layer.finish()
            # nn.Module finds parameters and submodules by a slow detour; beside it they are plain attributes.
            layer.__dict__.update(layer.named_children())
            layer.__dict__.update(layer.named_parameters(recurse=False))
