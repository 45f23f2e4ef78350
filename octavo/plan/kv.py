"""What each layer of a model keeps in KV memory, known from its config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.config.stages import stages
from octavo.core.kv.layout import KVLayout, lay_out
from octavo.core.kv.specs import LatentSpec, PagedSpec, WindowSpec

COMPARED = ("float32", "bfloat16", "fp8_e4m3", "int8")  # formats whose sizes a plan shows


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


def rank_layout(architecture: Architecture, settings: Resolved, kv_bytes: int | None = None) -> KVLayout:
    """The layout that all ranks of a replica share: of all layers, the heads of one rank, and as many blocks as every stage has room for
    in its `kv_bytes` (those of the settings where not given). Raises ValueError where nothing fits."""
    specs = kv_specs(architecture, settings.kv_dtype, settings.tensor_parallel_size)
    layers = [one.layers for one in stages(architecture.num_layers, settings.pipeline_parallel_size)]
    return lay_out(specs, settings.block_size, settings.kv_bytes if kv_bytes is None else kv_bytes, layers)


@dataclass(frozen=True)
class KVKind:
    """Layers of one rank that keep the same."""

    name: str  # how they attend
    num_layers: int
    held: str  # of a token, in each layer
    bytes_per_token: Mapping[str, int]  # over these layers, by KV dtype


def kv_kinds(architecture: Architecture, settings: Resolved) -> list[KVKind]:
    """What a token takes of one rank's memory, by kind of layer; of the whole model, where a pipeline's stages hold parts of it."""
    formats = (settings.kv_dtype,) if architecture.latent else tuple(dict.fromkeys((settings.kv_dtype, *COMPARED)))
    specs = kv_specs(architecture, settings.kv_dtype, settings.tensor_parallel_size)
    found: list[KVKind] = []
    for spec in dict.fromkeys(specs):
        count = specs.count(spec)
        sizes = {name: count * replace(spec, dtype=name).token_bytes for name in formats}
        found.append(KVKind(_attends(spec), count, _held(spec), sizes))
    return found


def _attends(spec: PagedSpec | WindowSpec | LatentSpec) -> str:
    if isinstance(spec, LatentSpec):
        return "latent attention"
    return f"window of {spec.window:,}" if isinstance(spec, WindowSpec) else "full attention"


def _held(spec: PagedSpec | WindowSpec | LatentSpec) -> str:
    if isinstance(spec, LatentSpec):
        return f"a vector of {spec.width}"
    return f"K and V of {spec.num_kv_heads} x {spec.head_dim}"
