"""The walk that turns declared layers into ones that can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from octavo.layers.env import Env
from octavo.layers.layer import Layer

LINE_BYTES = 64  # of a processor's cache


def layers_of(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """Everything in the model that is bound, by path."""
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            yield path, module


def materialize(model: nn.Module, env: Env) -> None:
    """Give every layer its parameters (allocated, not filled), operations, scheme, group and attention backend."""
    for path, layer in layers_of(model):
        layer.bind(path, env)
    side_by_side(parameter for parameter in model.parameters() if parameter.device.type == "cpu" and parameter.is_floating_point())


def side_by_side(parameters: Iterable[nn.Parameter]) -> None:
    """Give parameters that nobody has filled yet one piece of memory, which later can lie on huge pages. Not those that are laid out
    elsewhere when they are filled, and whose memory is to be given back one by one."""
    listed = list(parameters)
    sizes = [-(-parameter.nbytes // LINE_BYTES) * LINE_BYTES for parameter in listed]
    for parameter, piece in zip(listed, torch.empty(sum(sizes), dtype=torch.uint8).split(sizes)):
        parameter.data = piece[: parameter.nbytes].view(parameter.dtype).view(parameter.shape)


def finish(layers: Iterable[Layer]) -> None:
    """Once for each layer, when its weights are in: let it lay them out for its operations."""
    with torch.no_grad():
        for layer in layers:
            layer.finish()
            # nn.Module finds parameters and submodules by a slow detour; beside it they are plain attributes.
            layer.__dict__.update(layer.named_children())
            layer.__dict__.update(layer.named_parameters(recurse=False))
