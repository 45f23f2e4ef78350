"""Attention by FlashInfer (Ye et al. 2025, arXiv:2501.01005) where it is installed: `--attention-backend FLASHINFER --enforce-eager`.

Only taken when it is asked for. Its lists of work are made on the host from lengths, so nothing of it is captured; it compiles kernels when
they are first used, for which it needs ninja and nvcc. Steps of decodes alone go to its decode kernels, which cut contexts into pieces, all
others to those for prefill. Partial results lie in 128 MiB, lists of work in 8 MiB for each KV group, shape and kind of step: of the memory
plan's margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from octavo import env
from octavo.attention.backend import AttentionShape, Supports
from octavo.context import Batch

WORKSPACE_BYTES = 128 << 20  # as FlashInfer advises
DTYPES = frozenset({"bfloat16", "float16"})


@dataclass(frozen=True)
class Span:
    """A slice, as the host knows it."""

    row: int
    count: int
    length: int

    def oldest(self, window: int | None) -> int:
        """The first position that any of its tokens looks at."""
        return 0 if window is None else max(0, self.length - self.count + 1 - window)


@dataclass(frozen=True)
class FlashInferPlan:
    group: int
    block_table: torch.Tensor  # [max_num_seqs, max_blocks] int32
    block_tokens: int
    spans: tuple[Span, ...]
    ready: dict[AttentionShape, Any] = field(default_factory=dict[AttentionShape, Any])  # wrappers that know this step


class FlashInferAttention:
    name = "flashinfer"

    def __init__(self) -> None:
        self.supports = Supports(
            devices=frozenset({"cuda"}),
            head_dims=frozenset({64, 128, 256}),
            dtypes=DTYPES,
            kv_dtypes=DTYPES,
            min_sm=80,
            absent=_absent(),
            reads_lengths=True,
        )
        self._wrappers: dict[tuple[int, AttentionShape, bool], Any] = {}  # by group, shape, and whether they decode
        self._workspace: torch.Tensor | None = None  # layers take turns with it

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> FlashInferPlan:
        starts, lengths, rows = torch.cat((batch.starts, batch.lengths, batch.rows)).split(
            [batch.starts.numel(), batch.lengths.numel(), batch.rows.numel()]
        )
        found = zip(rows.tolist(), starts.diff().tolist(), lengths.tolist())
        return FlashInferPlan(group, block_table, block_tokens, tuple(Span(*one) for one in found if one[1]))

    def run(
        self, plan: FlashInferPlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        assert scales is None, "not a format that this backend supports"
        assert sinks is None, "not what this backend supports"
        out = torch.zeros_like(q)
        num_tokens = sum(span.count for span in plan.spans)
        if num_tokens:
            if shape not in plan.ready:
                plan.ready[shape] = self._prepared(plan, shape, q, kv.dtype)
            plan.ready[shape].run(q[:num_tokens], kv, out=out[:num_tokens])
        return out

    def _prepared(self, plan: FlashInferPlan, shape: AttentionShape, q: torch.Tensor, kv_dtype: torch.dtype) -> Any:
        """A wrapper that was told this step's work. Blocks that no token looks at are left out, since their entries may be stale."""
        decodes = all(span.count == 1 for span in plan.spans)
        first = [span.oldest(shape.window) // plan.block_tokens for span in plan.spans]
        after = [-(-span.length // plan.block_tokens) for span in plan.spans]
        blocks_at = _ends(last - start for start, last in zip(first, after))
        in_last = [(span.length - 1) % plan.block_tokens + 1 for span in plan.spans]
        counts = torch.tensor([last - start for start, last in zip(first, after)])
        place = torch.arange(int(blocks_at[-1])) - (blocks_at[:-1] - torch.tensor(first)).repeat_interleave(counts)
        row = torch.tensor([span.row for span in plan.spans]).repeat_interleave(counts)
        device = plan.block_table.device
        blocks = plan.block_table[row.to(device), place.to(device)]  # [blocks of all slices] int32
        last = torch.tensor(in_last, dtype=torch.int32)
        shared = {
            "sm_scale": shape.scale,
            "window_left": -1 if shape.window is None else shape.window - 1,
            "logits_soft_cap": shape.softcap,
            "q_data_type": q.dtype,
            "kv_data_type": kv_dtype,
        }
        sizes = (shape.heads, shape.kv_heads, shape.head_dim, plan.block_tokens)
        wrapper = self._wrapper(plan.group, shape, decodes, q.device)
        if decodes:
            wrapper.plan(blocks_at, blocks, last, *sizes, **shared)
        else:
            wrapper.plan(_ends(span.count for span in plan.spans), blocks_at, blocks, last, *sizes, causal=True, **shared)
        return wrapper

    def _wrapper(self, group: int, shape: AttentionShape, decodes: bool, device: torch.device) -> Any:
        """One for each, as a wrapper knows one step's work at a time and layers of several shapes take turns."""
        key = (group, shape, decodes)
        if key not in self._wrappers:
            if self._workspace is None:
                self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            library = import_module("flashinfer")
            if decodes:
                tensor_cores = shape.heads >= 4 * shape.kv_heads  # from where on FlashInfer's documentation advises them
                made = library.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=tensor_cores)
            else:
                made = library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
            self._wrappers[key] = made
        return self._wrappers[key]


def _absent() -> str | None:
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install flashinfer-python)"
    if env.FORCE_AOT_LOAD.get():
        return f"{env.FORCE_AOT_LOAD.name} = 1 forbids compiling, and FlashInfer compiles what is first used"
    return None


def _ends(counts: Any) -> torch.Tensor:
    """[n + 1] int32: 0, and the sums of the first 1, 2, ... n counts."""
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
