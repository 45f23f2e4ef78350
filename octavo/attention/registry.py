"""The attention backends by name, the one tried first in front."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from octavo.attention.backend import AttentionBackend, Choice, Needs, choose
from octavo.config.architecture import Architecture, LayerConfig
from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.ops.kv_format import COMPRESSED
from octavo.registry import Registry

BACKENDS = Registry(
    "attention backend",
    {
        "triton": "octavo.attention.triton:TritonAttention",
        "triton_mla": "octavo.attention.triton_latent:TritonLatent",
        "cpu": "octavo.attention.cpu:NativeAttention",
        "triton_invariant": "octavo.attention.invariant:InvariantTriton",
        "cpu_invariant": "octavo.attention.invariant:InvariantNative",
        "reference": "octavo.attention.reference:ReferenceAttention",
        "flashinfer": "octavo.attention.flashinfer:FlashInferAttention",
    },
)
ONLY_ASKED = {"flashinfer": "it is taken only where it is asked for, as it is slower where a step has decodes"}


def backend_for(asked: str, needs: Needs) -> Choice:
    """The backend that was asked for, or for "auto" the first that fits, with the reasons why the others do not.

    Raises ValueError when the asked one cannot serve the needs, KeyError when there is none of that name.
    """
    names = [name for name in BACKENDS.names() if name not in ONLY_ASKED] if asked == "auto" else [asked]
    if asked == "auto" and needs.kv_dtype in COMPRESSED:
        names.remove("reference")  # it reads every format, but so slowly that it has to be asked for

    def candidates() -> Iterator[AttentionBackend]:
        for name in names:
            yield BACKENDS.load(name)()

    choice = choose(candidates(), needs)
    later = [name for name in names if name != choice.backend.name and name not in choice.refused]
    passed = {**dict.fromkeys(later, f"{choice.backend.name} comes first and serves"), **(ONLY_ASKED if asked == "auto" else {})}
    return replace(choice, refused={**choice.refused, **passed})


def choose_attention(architecture: Architecture, settings: Resolved, sm: int, elsewhere: bool = False) -> Choice:
    """The backend of a model's layers on a device of compute capability `sm` (90 for 9.0); `elsewhere` plans for another machine.

    Raises `ConfigError` where the asked one is not known or cannot serve, or none can.
    """
    asked = settings.attention_backend.lower()  # vLLM writes names in capitals
    if asked == "auto" and settings.optimization_level == 0 and not settings.batch_invariant:
        asked = "reference"
    needs = Needs(
        device=settings.device,
        kinds=frozenset(_kind(architecture, layer) for layer in architecture.layers),
        head_dims=frozenset({architecture.latent.width if architecture.latent else architecture.head_dim}),
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        softcap=architecture.attention_softcap is not None,
        sinks=architecture.sinks,
        sm=sm,
        graphs=settings.device == "cuda" and bool(settings.graph_sizes),
        invariant=settings.batch_invariant,
        drafts_with_overlap=settings.num_speculative_tokens > 0 and settings.overlap_depth > 0,
        elsewhere=elsewhere,
    )
    if asked != "auto" and asked not in BACKENDS.names():
        raise ConfigError("attention_backend", asked, f"use auto, {', '.join(BACKENDS.names())}")
    try:
        return backend_for(asked, needs)
    except ValueError as error:
        raise ConfigError("attention_backend", asked, str(error)) from None


def _kind(architecture: Architecture, layer: LayerConfig) -> str:
    if architecture.latent is not None:
        return "latent"
    return "paged" if layer.window is None else "window"
