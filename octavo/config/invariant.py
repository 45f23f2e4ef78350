"""Whether every sum is to be made in one order (`--batch-invariant`), and for what that cannot be had."""

from __future__ import annotations

from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError


def batch_invariant(asked: EngineConfig, arch: Architecture) -> bool:
    """Whether it is asked for. Raises `ConfigError` where sums would still hang on the batch."""
    if not asked.compilation.batch_invariant:
        return False
    why = "experts take their tokens in tiles that hang on the batch" if any(layer.experts for layer in arch.layers) else ""
    if arch.latent is not None:
        why = "attention over latent vectors has products that hang on the batch"
    if asked.parallel.world_size > 1:
        why = "ranks add up in an order that hangs on the batch; use one device"
    if asked.model.quantization == "gguf":
        why = "products with packed weights hang on the batch; use --quantization none"
    if why:
        raise ConfigError("batch_invariant", True, why)
    return True
