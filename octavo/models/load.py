"""Filling a model's parameters from the tensors of a checkpoint, strictly: every tensor is used or explained, every parameter is filled.

What fits is settled from names and shapes, before a weight is read.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.layers.layer import Weight
from octavo.models.base import CausalLM
from octavo.models.materialize import finish, layers_of
from octavo.models.tensors import CheckpointError, LazyTensor, Loader, LoadReport, give_back, trim_heap

log = logging.getLogger(__name__)

Tensors = Mapping[str, LazyTensor]

COMPUTED = re.compile(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.masked_bias$")  # tables that older files carry along
KV_SCALE = re.compile(r"\.self_attn\.(k_proj\.k|v_proj\.v|k|v)_scale$")
SHOWN = 8  # names of each kind in an error


class WeightsMismatch(CheckpointError):
    """The checkpoint is not of this model; the text names the tensors and their counts."""


@dataclass(frozen=True)
class Loaded:
    report: LoadReport
    explained: Mapping[str, str]  # tensors that were not needed -> why


def load(model: CausalLM, tensors: Tensors) -> Loaded:
    """Copy every tensor to its place and finish the layers.

    Raises `WeightsMismatch` when one is missing, unexpected, there twice (fused and in parts) or of another shape.
    """
    layers = [layer for _, layer in layers_of(model)]
    owned = {weight.name: (layer, weight) for layer in layers for weight in layer.weights()}
    wanted = {name: weight for name, (_, weight) in owned.items()}
    used = {name: _as_wanted(tensor, wanted[name]) for name, tensor in tensors.items() if name in wanted}
    explained = {name: _explanation(model, name, tensor, wanted) for name, tensor in tensors.items() if name not in wanted}
    wrong = _wrong(wanted, used)
    needed = {piece for weight in wanted.values() if not weight.optional for piece in weight.pieces}
    missing = needed.difference(*(wanted[name].pieces for name in used))
    unexpected = [name for name, reason in explained.items() if not reason]
    if missing or unexpected or wrong:
        raise WeightsMismatch(_complaint(sorted(missing), unexpected, wrong))
    places = {name: place for name, tensor in used.items() if (place := _place(tensor, wanted[name])) is not None}
    loader = Loader(used, places=places, expand=model.ops.expand_blocks)
    coming = Counter(owned[name][0] for name in used)
    with torch.no_grad():
        for name, tensor in loader:
            layer, weight = owned[name]
            if name not in places:
                weight.put(tensor.reshape(weight.shape))  # a scalar may be stored as [1]
            coming[layer] -= 1
            if not coming[layer]:  # at once, so that the next layer takes the memory that this one gives back
                finish([layer])
    finish(layer for layer in layers if layer not in coming)  # such as a head that lays out the table it shares
    give_back(used.values())
    trim_heap()
    for reason, count in Counter(explained.values()).items():
        log.info("%d tensors of the checkpoint were not needed: %s", count, reason)
    return Loaded(loader.report, explained)


def _as_wanted(tensor: LazyTensor, weight: Weight) -> LazyTensor:
    """The blocks of a packed tensor for a layer that keeps them, else its numbers."""
    if tensor.quantization is not None and len(weight.shape) == 3:
        return tensor.blocks()
    return tensor


def _place(tensor: LazyTensor, weight: Weight) -> torch.Tensor | None:
    """Where packed numbers may be written as they are expanded: no copy of them is made on the way."""
    place = weight.place
    expands = tensor.quantization is not None and not tensor.shift
    return place if expands and place is not None and place.device.type == "cpu" and place.is_contiguous() else None


def _wrong(wanted: Mapping[str, Weight], used: Tensors) -> list[str]:
    """What does not fit among the tensors that have a place."""
    wrong, filled = list[str](), set[str]()
    for name, tensor in used.items():
        weight = wanted[name]
        if tuple(tensor.shape) != weight.shape and not (weight.shape == () and tuple(tensor.shape) == (1,)):
            wrong.append(f"{name} has shape {tuple(tensor.shape)} where {weight.shape} is needed")
        elif weight.pieces & filled:
            wrong.append(f"{name} is there twice, fused and in parts")
        filled |= weight.pieces
    return wrong


def _explanation(model: CausalLM, name: str, tensor: LazyTensor, wanted: Mapping[str, Weight]) -> str:
    """Why a tensor that fills nothing may be there all the same; empty when there is no reason."""
    c, stage = model.architecture, model.stage
    if COMPUTED.search(name):
        return "computed here"
    if KV_SCALE.search(name):
        return "a scale of an fp8 KV cache, where --kv-cache-dtype is another"
    if name == "lm_head.weight" and c.tied_embeddings:
        return "the head shares the embedding's table"
    index = re.match(r"model\.layers\.(\d+)\.", name)
    if index and int(index[1]) >= c.num_layers and c.latent is not None:
        return "a layer for drafting several tokens at once, which is not used"
    if index and int(index[1]) < c.num_layers and int(index[1]) not in stage.layers:
        return "on another pipeline stage"
    if (name == "model.embed_tokens.weight" and not stage.first) or (name in ("model.norm.weight", "lm_head.weight") and not stage.last):
        return "on another pipeline stage"
    if name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" in wanted and not tensor.load().any():
        return "a bias of zeros for a layer without one"
    return ""


def _complaint(missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    lines = ["the checkpoint does not fit the model:"]
    for what, names in (("missing", missing), ("not known to the model", unexpected), ("wrong", wrong)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            lines.append(f"  {len(names)} {what}: {', '.join(names[:SHOWN])}{more}")
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
    finish(layer for _, layer in layers_of(model))


SMALL_BYTES = (118, 122)  # that are small numbers as codes of packed weights, and as their scales
PATTERN = 1_000_003  # elements drawn at most; a prime, so that rows of a weight differ when the pattern repeats


def _randomize(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Uniform with the variance that keeps a product's scale. Host generators are slow, so there a long tensor repeats a pattern."""
    if tensor.dtype is torch.uint8:
        tensor.random_(*SMALL_BYTES, generator=generator)
        return
    bound = (3.0 / tensor.shape[-1]) ** 0.5
    flat = tensor.view(-1)
    drawn = flat if tensor.is_cuda else flat[:PATTERN]
    drawn.uniform_(-bound, bound, generator=generator) if tensor.dim() > 1 else drawn.fill_(1.0 if tensor.dtype is torch.float32 else 0.0)
    for start in range(drawn.numel(), flat.numel(), PATTERN):
        rest = flat[start : start + PATTERN]
        rest.copy_(drawn[: rest.numel()])
