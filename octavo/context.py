"""The one argument every layer receives: the flat batch of a step and what attention needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Batch:
    """A plan lowered to the device: the tokens of all slices one after the other. T tokens, S slices, N sampled positions, G KV groups.

    Where a batch is padded to a captured size, padding tokens have slot -1 and padding slices have length 0. Sampled positions beyond
    those of `sample_rows` are padding too.
    """

    tokens: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    starts: torch.Tensor  # [S + 1] int32: slice s owns tokens starts[s] to starts[s + 1]
    lengths: torch.Tensor  # [S] int32: context of each slice after this step, its own tokens included
    rows: torch.Tensor  # [S] int32
    slots: torch.Tensor  # [G, T] int64: where each token's KV goes in each group, block * block_tokens + offset; -1: nowhere
    sample_at: torch.Tensor  # [N] int64: positions in the flat batch whose logits are sampled
    sample_rows: torch.Tensor  # [N or fewer] int64: the row of each
    # Bounds the host knows without asking the device:
    num_tokens: int  # without padding, where slices are without it
    num_slices: int
    max_count: int  # the longest slice
    max_length: int  # the longest context after this step, an upper bound
    fresh: tuple[int, ...] = ()  # tokens of each of the last slices, whose contexts are wholly in this step
    max_old_count: int = 0  # the longest slice before those


@dataclass(frozen=True)
class Room:
    """What a batch is padded to: tokens, and places for slices; zeros: to nothing."""

    num_tokens: int = 0
    num_slices: int = 0


UNPADDED = Room()


@dataclass(frozen=True)
class ForwardContext:
    """What a forward pass is given: the batch, and what attention has planned for it."""

    batch: Batch
    attention: tuple[Any, ...]  # one AttentionPlan per KV group, made by the backend's `plan`
    embeds: torch.Tensor | None = None  # [T, hidden]: replaces the embedding where media are
    hidden_in: torch.Tensor | None = None  # [T, hidden]: from the pipeline stage before this one
