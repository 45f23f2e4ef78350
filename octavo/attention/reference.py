"""Attention over paged memory in plain torch: the exact and readable twin of every other backend, for any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from octavo.attention.backend import AttentionShape, Supports
from octavo.context import Batch
from octavo.ops.kv_format import restored

MOST_TOKENS = 512  # of a slice at once: earlier ones then have fewer keys to look at, half of them in a long prompt
MOST_PAIRS = 1 << 22  # of a token and a key at once: each has a score in float32 for every head
PAIRS_A_KEY = 32  # whose scores take about the memory of the key and its value


@dataclass(frozen=True)
class Alike:
    """Slices, or parts of them, with as many tokens and as long a context each: attended together."""

    count: int
    length: int
    rows: torch.Tensor  # [n]
    tokens: torch.Tensor  # [n, count]: places in the batch


@dataclass(frozen=True)
class ReferencePlan:
    block_table: torch.Tensor  # [max_num_seqs, max_blocks] int32
    block_tokens: int
    parts: tuple[Alike, ...]


class ReferenceAttention:
    """Takes what is alike together, with scores in float32."""

    name = "reference"
    supports = Supports(kinds=frozenset({"paged", "window", "latent"}), sinks=True, reads_lengths=True)

    def plan(self, batch: Batch, group: int, block_table: torch.Tensor, block_tokens: int) -> ReferencePlan:
        starts, lengths, rows = batch.starts.tolist(), batch.lengths.tolist(), batch.rows.tolist()
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, start, end, length in zip(rows, starts, starts[1:], lengths):
            for first, count, seen in _parts(start, end, length):
                found.setdefault((count, seen), []).append((row, first))
        return ReferencePlan(block_table, block_tokens, tuple(_together(found, block_table.device)))

    def run(
        self, plan: ReferencePlan, q: torch.Tensor, kv: torch.Tensor, shape: AttentionShape, scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        out = q.new_zeros((*q.shape[:2], shape.value_dim or shape.head_dim))
        for part in plan.parts:
            first = part.length - part.count  # position of the first token
            oldest = 0 if shape.window is None else max(0, first + 1 - shape.window)  # nothing before it is looked at
            k, v = _gather(plan, kv, scales, part.rows, oldest, part.length)
            visible = _visible(first, part.count, oldest, part.length, shape.window, q.device)
            out[part.tokens] = attend(q[part.tokens], k, v[..., : shape.value_dim], visible, shape, sinks)
        return out


def _parts(start: int, end: int, length: int) -> Iterator[tuple[int, int, int]]:
    """A slice in parts of so many tokens at most: the first one's place in the batch, their number, their context's length."""
    most = max(1, min(MOST_TOKENS, MOST_PAIRS // max(length, 1)))
    for first in range(start, end, most):
        last = min(first + most, end)
        yield first, last - first, length - (end - last)


def _together(found: dict[tuple[int, int], list[tuple[int, int]]], device: torch.device) -> Iterator[Alike]:
    """By count and length: rows and first places -> so many at once as may be."""
    for (count, length), places in found.items():
        most = max(1, MOST_PAIRS // (max(count, PAIRS_A_KEY) * length))
        for begin in range(0, len(places), most):
            rows, firsts = torch.tensor(places[begin : begin + most], device=device).unbind(1)
            yield Alike(count, length, rows, firsts.unsqueeze(1) + torch.arange(count, device=device))


def _gather(
    plan: ReferencePlan, kv: torch.Tensor, scales: torch.Tensor | None, rows: torch.Tensor, oldest: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V at the positions oldest to length of n rows: each [n, length - oldest, kv_heads, head_dim] float32. Of latents both
    are the same."""
    head = oldest // plan.block_tokens
    blocks = plan.block_table[rows, head : -(-length // plan.block_tokens)].long()  # [n, blocks]
    own = scales[blocks] if scales is not None and scales.dim() > 1 else scales
    pages = restored(kv[blocks], own).movedim(2, 0).flatten(2, 3)  # [2, n, tokens, kv_heads, head_dim]
    skipped = head * plan.block_tokens
    return pages[0, :, oldest - skipped : length - skipped], pages[-1, :, oldest - skipped : length - skipped]


def _visible(first: int, count: int, oldest: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[count, length - oldest] bool: which key positions each query position sees."""
    queries = torch.arange(first, first + count, device=device).unsqueeze(1)
    keys = torch.arange(oldest, length, device=device)
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, shape: AttentionShape, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(cap(scale * q k^T)) v: q [..., count, heads, head_dim] over k, v [..., length, kv_heads, head_dim], neighbouring heads
    sharing one."""
    grouped = q.float().unflatten(-2, (shape.kv_heads, -1))  # [..., count, kv_heads, sharing, head_dim]
    scores = torch.einsum("...qhgd,...khd->...hgqk", grouped, k.float()) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        sink = sinks.view(shape.kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = scores.softmax(-1)[..., : k.shape[-3]]
    return torch.einsum("...hgqk,...khd->...qhgd", weights, v.float()).flatten(-3, -2).to(q.dtype)
