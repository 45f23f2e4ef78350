"""What each layer of a model keeps in KV memory, known from its config alone."""

from __future__ import annotations

from octavo.config.architecture import Architecture
from octavo.core.kv.specs import LatentSpec, PagedSpec, WindowSpec


def kv_specs(architecture: Architecture, kv_dtype: str, tensor_parallel_size: int = 1) -> list[PagedSpec | WindowSpec | LatentSpec]:
    """One spec a layer, in order, for the kv heads of one rank (where there are fewer heads than ranks, ranks hold copies)."""
    if architecture.latent is not None:
        return [LatentSpec(architecture.latent.width, kv_dtype)] * architecture.num_layers
    heads = max(1, architecture.kv_heads // tensor_parallel_size)
    return [
        PagedSpec(num_kv_heads=heads, head_dim=architecture.head_dim, dtype=kv_dtype)
        if layer.window is None
        else WindowSpec(num_kv_heads=heads, head_dim=architecture.head_dim, window=layer.window, dtype=kv_dtype)
        for layer in architecture.layers
    ]
