"""What an attention backend is, and how one is chosen: by comparing what the model needs with what each says it supports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from octavo.context import Batch


@dataclass(frozen=True)
class AttentionShape:
    """What a layer asks of attention, for the heads of this rank."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # multiplies q @ k
    window: int | None = None  # a token attends this many newest tokens, itself included
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    value_dim: int | None = None  # of latents: a token's value is the first so many of its key's dimensions


@dataclass(frozen=True)
class Supports:
    """What a backend can do. An empty set means anything."""

    devices: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset({"paged", "window"})  # and "latent"
    head_dims: frozenset[int] = frozenset()
    dtypes: frozenset[str] = frozenset()
    kv_dtypes: frozenset[str] = frozenset()
    softcap: bool = True
    sinks: bool = False
    min_sm: int = 0  # CUDA compute capability, 90 for 9.0
    kv_min_sm: Mapping[str, int] = field(default_factory=dict[str, int])  # of KV dtypes that need more than that
    invariant: bool = False  # a token's result depends on its own context alone, however steps are cut
    absent: str | None = None  # why it cannot run on this machine at all
    reads_lengths: bool = False  # `plan` reads values on the host: no graphs, and no drafts together with overlap


@dataclass(frozen=True)
class Needs:
    """What a model on a device needs of its backend."""

    device: str
    kinds: frozenset[str]
    head_dims: frozenset[int]
    dtype: str
    kv_dtype: str
    softcap: bool = False
    sinks: bool = False
    sm: int = 0
    graphs: bool = False
    drafts_with_overlap: bool = False
    invariant: bool = False
    elsewhere: bool = False  # asked for another machine: what is absent on this one does not count


class AttentionBackend(Protocol):
    """Attention over paged memory for a mixed batch: slices of any count over contexts of any length."""

    name: str
    supports: Supports

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> Any:
        """Once a step and KV group. block_table [max_num_seqs, max_blocks] int32 is indexed by `batch.rows`; entry i of a row is the
        block of the tokens i * block_tokens and on, and entries before a layer's window may be stale."""
        ...

    def run(
        self, plan: Any, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Once a layer. q [T, heads, head_dim]; kv [num_blocks, 2, block_tokens, kv_heads, head_dim] with its scales (`kv_format`) holds
        K and V of the whole context, those of this step's tokens included; sinks [heads] float32, a score of each head that takes its
        part of the weight and has no value (gpt-oss, OpenAI 2025) -> [T, heads, head_dim]. Rows of padding tokens are finite.

        Of latents, kv is [num_blocks, 1, block_tokens, 1, head_dim] -> [T, heads, value_dim]."""
        ...


def refusal(supports: Supports, needs: Needs) -> str | None:
    """Why a backend cannot serve these needs; None if it can."""
    if supports.absent and not needs.elsewhere:
        return supports.absent
    sets: list[tuple[str, Iterable[Any], frozenset[Any]]] = [
        ("device", [needs.device], supports.devices),
        ("KV kind", needs.kinds, supports.kinds),
        ("head_dim", needs.head_dims, supports.head_dims),
        ("dtype", [needs.dtype], supports.dtypes),
        ("KV dtype", [needs.kv_dtype], supports.kv_dtypes),
    ]
    for what, wanted, allowed in sets:
        lacking = sorted(value for value in wanted if allowed and value not in allowed)
        if lacking:
            return f"{what} {', '.join(map(str, lacking))} is not supported, only {', '.join(map(str, sorted(allowed)))}"
    if needs.invariant and not supports.invariant:
        return "what it gives for a token hangs on the batch (--batch-invariant)"
    if needs.softcap and not supports.softcap:
        return "soft caps on scores are not supported"
    if needs.sinks and not supports.sinks:
        return "attention sinks are not supported"
    if needs.device == "cuda" and needs.sm < supports.kv_min_sm.get(needs.kv_dtype, 0):
        least = supports.kv_min_sm[needs.kv_dtype] / 10
        return f"KV dtype {needs.kv_dtype} needs compute capability {least:.1f}, the device has {needs.sm / 10:.1f}"
    if needs.device == "cuda" and needs.sm < supports.min_sm:
        return f"it needs compute capability {supports.min_sm / 10:.1f}, the device has {needs.sm / 10:.1f}"
    if supports.reads_lengths and needs.graphs:
        return "it reads lengths on the host, which graphs cannot capture; --enforce-eager goes without them"
    if supports.reads_lengths and needs.drafts_with_overlap:
        return "it reads lengths on the host, which speculation with overlapped scheduling cannot wait for"
    return None


@dataclass(frozen=True)
class Choice:
    """The chosen backend, and why each other candidate was passed over."""

    backend: AttentionBackend
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        return self.backend.name + "".join(f"; not {name}: {reason}" for name, reason in self.refused.items())


def choose(candidates: Iterable[AttentionBackend], needs: Needs) -> Choice:
    """The first candidate that serves the needs. Raises ValueError with every reason when none does."""
    refused: dict[str, str] = {}
    for backend in candidates:
        reason = refusal(backend.supports, needs)
        if reason is None:
            return Choice(backend, refused)
        refused[backend.name] = reason
    listed = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    raise ValueError(f"no attention backend fits. {listed}")
