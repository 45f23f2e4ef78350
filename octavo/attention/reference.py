"""Attention over paged memory in plain torch: the exact and readable twin of every other backend, for any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.attention.backend import AttentionShape, Supports
from octavo.context import Batch
from octavo.ops.kv_format import restored


@dataclass(frozen=True)
class ReferencePlan:
    block_table: torch.Tensor  # [max_num_seqs, max_blocks] int32
    block_tokens: int
    slices: tuple[tuple[int, int, int, int], ...]  # row, first token in the batch, token after the last, context length


class ReferenceAttention:
    """Takes the slices one by one, with scores in float32."""

    name = "reference"
    supports = Supports(kinds=frozenset({"paged", "window", "latent"}), sinks=True, reads_lengths=True)

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> ReferencePlan:
        starts, lengths, rows = batch.starts.tolist(), batch.lengths.tolist(), batch.rows.tolist()
        slices = tuple((row, start, end, length) for row, start, end, length in zip(rows, starts, starts[1:], lengths) if end > start)
        return ReferencePlan(block_table, block_tokens, slices)

    def run(
        self, plan: ReferencePlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        out = q.new_zeros((*q.shape[:2], shape.value_dim or shape.head_dim))
        for row, start, end, length in plan.slices:
            first = length - (end - start)  # position of the slice's first token
            oldest = 0 if shape.window is None else max(0, first + 1 - shape.window)  # nothing before it is looked at
            k, v = _gather(plan, kv, scales, row, oldest, length)
            visible = _visible(first, end - start, oldest, length, shape.window, q.device)
            out[start:end] = attend(q[start:end], k, v[..., : shape.value_dim], visible, shape, sinks)
        return out


def _gather(
    plan: ReferencePlan, kv: torch.Tensor, scales: torch.Tensor | None, row: int, oldest: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V at the positions oldest to length of a row: each [length - oldest, kv_heads, head_dim] float32. Of latents both
    are the same."""
    head = oldest // plan.block_tokens
    blocks = plan.block_table[row, head : -(-length // plan.block_tokens)].long()
    own = scales[blocks] if scales is not None and scales.dim() > 1 else scales
    pages = restored(kv[blocks], own).transpose(0, 1).flatten(1, 2)  # [2, tokens, kv_heads, head_dim]
    skipped = head * plan.block_tokens
    return pages[0, oldest - skipped : length - skipped], pages[-1, oldest - skipped : length - skipped]


def _visible(first: int, count: int, oldest: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[count, length - oldest] bool: which key positions each query position sees."""
    queries = torch.arange(first, first + count, device=device).unsqueeze(1)
    keys = torch.arange(oldest, length, device=device)
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, shape: AttentionShape, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(cap(scale * q k^T)) v: q [count, heads, head_dim] over k, v [length, kv_heads, head_dim], neighbouring heads sharing one."""
    grouped = q.float().unflatten(1, (shape.kv_heads, -1))  # [count, kv_heads, sharing, head_dim]
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k.float()) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.view(shape.kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = scores.softmax(-1)[..., : k.shape[0]]
    return torch.einsum("hgqk,khd->qhgd", weights, v.float()).flatten(1, 2).to(q.dtype)
