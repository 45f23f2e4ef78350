"""Experts that a checkpoint stores in MXFP4 (GPT-OSS): whether they stay so, and what they take."""

from __future__ import annotations

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.experts import Experts
from octavo.config.fields import ConfigError
from octavo.config.resolved import Packed
from octavo.config.stages import stages

METHOD = "mxfp4"  # as checkpoints call it
BLOCK_VALUES, BLOCK_BYTES = 32, 17  # 32 numbers of 4 bits and their scale


def kept_in_mxfp4(asked: EngineConfig, arch: Architecture, reasons: dict[str, str]) -> Packed | None:
    """What stays packed of the rank that holds most; None: experts are widened to the numbers of --dtype. Raises `ConfigError`."""
    given, parallel = asked.model.quantization, asked.parallel
    if given not in ("auto", METHOD, "none"):
        raise ConfigError("quantization", given, f"the model's experts are in {METHOD}; use {METHOD}, none or auto")
    if given == "none":
        return None
    whole = parallel.enable_expert_parallel and parallel.tensor_parallel_size * parallel.data_parallel_size > 1
    cut = 1 if whole else parallel.tensor_parallel_size
    spread = parallel.tensor_parallel_size * parallel.data_parallel_size if whole else 1
    for experts in {layer.experts for layer in arch.layers if layer.experts}:
        if experts.intermediate % (cut * BLOCK_VALUES) or arch.hidden % BLOCK_VALUES:
            why = f"{experts.intermediate} inner features over {cut} ranks do not end between blocks of {BLOCK_VALUES}"
            if given == METHOD:
                raise ConfigError("quantization", given, f"{why}; use none, --enable-expert-parallel, or fewer ranks")
            reasons["quantization"] = f"experts in MXFP4 are widened: {why}"
            return None
    of_stages = [
        sum(_num_values(arch, experts, cut, spread) for number in stage.layers if (experts := arch.layers[number].experts))
        for stage in stages(arch.num_layers, parallel.pipeline_parallel_size)
    ]
    num_values = max(of_stages)
    reasons["quantization"] = "as asked" if given != "auto" else "experts as in the file"
    return Packed(num_values, num_values // BLOCK_VALUES * BLOCK_BYTES)


def _num_values(arch: Architecture, experts: Experts, cut: int, spread: int) -> int:
    """Of the weights of one layer's experts on a rank: all of some, or a part of each."""
    return 3 * arch.hidden * experts.intermediate // cut * -(-experts.num // spread)
