"""Filling a model's parameters from the tensors of a checkpoint, strictly: every tensor is used or explained, every parameter is filled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from octavo.layers.env import Weight
from octavo.models.base import CausalLM
from octavo.models.materialize import bound_modules, finish

LazyTensor = Callable[[], torch.Tensor]
Tensors = Mapping[str, LazyTensor] | Iterable[tuple[str, LazyTensor]]

COMPUTED = re.compile(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.masked_bias$")  # tables that older files carry along


class WeightsMismatch(ValueError):
    """The checkpoint is not of this model; the text names the tensors and their counts."""


@dataclass
class LoadReport:
    """What was done with the tensors of a checkpoint."""

    num_loaded: int = 0
    explained: dict[str, str] = field(default_factory=dict[str, str])  # tensor name -> why it was not needed


def load(model: CausalLM, tensors: Tensors) -> LoadReport:
    """Copy every tensor to its place and finish the layers. A tensor is read (its callable called) only when it is used.

    Raises `WeightsMismatch` when one is missing, unexpected, given twice or of another shape.
    """
    wanted = {weight.name: weight for _, module in bound_modules(model) for weight in module.weights()}
    missing = {piece for weight in wanted.values() for piece in weight.pieces}
    report, unexpected, wrong = LoadReport(), list[str](), list[str]()
    pairs = cast("Iterable[tuple[str, LazyTensor]]", tensors.items() if isinstance(tensors, Mapping) else tensors)
    for name, read in pairs:
        weight = wanted.get(name)
        if weight is not None:
            wrong += _fill(weight, read(), missing)
            report.num_loaded += 1
        elif reason := _explanation(model, name, read, wanted):
            report.explained[name] = reason
        else:
            unexpected.append(name)
    if missing or unexpected or wrong:
        raise WeightsMismatch(_complaint(model, sorted(missing), unexpected, wrong))
    finish(model)
    return report


def _fill(weight: Weight, tensor: torch.Tensor, missing: set[str]) -> list[str]:
    """Put a tensor in its place and take it off the list of what is missing; gives what is wrong with it."""
    if tuple(tensor.shape) != weight.shape:
        missing -= weight.pieces
        return [f"{weight.name} has shape {tuple(tensor.shape)} where {weight.shape} is needed"]
    if not weight.pieces <= missing:
        return [f"{weight.name} is given twice"]
    missing -= weight.pieces
    with torch.no_grad():
        weight.put(tensor)
    return []


def _explanation(model: CausalLM, name: str, read: LazyTensor, wanted: Mapping[str, Weight]) -> str | None:
    """Why a tensor that fills nothing may be there all the same; None when there is no reason."""
    c, stage = model.architecture, model.stage
    if COMPUTED.search(name):
        return "computed here"
    if name == "lm_head.weight" and c.tied_embeddings:
        return "the head shares the embedding's table"
    index = re.match(r"model\.layers\.(\d+)\.", name)
    if index and int(index[1]) < c.num_layers and int(index[1]) not in stage.layers:
        return "on another pipeline stage"
    if (name == "model.embed_tokens.weight" and not stage.first) or (name in ("model.norm.weight", "lm_head.weight") and not stage.last):
        return "on another pipeline stage"
    if name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" in wanted:
        return None if read().any() else "a bias of zeros for a layer without one"
    return None


def _complaint(model: CausalLM, missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    lines = ["the checkpoint does not fit the model:"]
    for what, names in (("missing", missing), ("not known to the model", unexpected), ("wrong", wrong)):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            lines.append(f"  {len(names)} {what}: {', '.join(names[:8])}{more}")
    if "lm_head.weight" in missing:
        similar = [name for name in unexpected if "head" in name or "output" in name or "embed_out" in name]
        found = f" (a tensor named {similar[0]} is there)" if similar else ""
        lines.append(f"  config.json says tie_word_embeddings = false, so the head must be in the files{found}; should it be true?")
    return "\n".join(lines)


def fill_dummy(model: CausalLM, seed: int = 0) -> None:
    """Random weights that keep activations in range: for measuring speed without a checkpoint."""
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for parameter in model.parameters():
            device = parameter.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            _randomize(parameter.data, generators[device])
    finish(model)


PATTERN = 1_000_003  # elements drawn at most; a prime, so that rows of a weight differ when the pattern repeats


def _randomize(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Uniform with the variance that keeps a product's scale. Host generators are slow, so there a long tensor repeats a pattern."""
    bound = (3.0 / tensor.shape[-1]) ** 0.5
    flat = tensor.view(-1)
    drawn = flat if tensor.is_cuda else flat[:PATTERN]
    drawn.uniform_(-bound, bound, generator=generator) if tensor.dim() > 1 else drawn.fill_(1.0 if tensor.dtype is torch.float32 else 0.0)
    for start in range(drawn.numel(), flat.numel(), PATTERN):
        rest = flat[start : start + PATTERN]
        rest.copy_(drawn[: rest.numel()])
