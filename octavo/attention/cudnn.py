"""Causal attention of whole prompts by cuDNN, which torch brings along: for long ones faster than reading them from paged memory.

cuDNN makes a plan for every shape that it has not seen, which can take some tenths of a second. So all prompts of a step go in one ragged
call whose shape is rounded up: to `token_room` tokens, to a power of two of the longest prompt, and to as many prompts as would fill the
room twice, those in excess being empty. The call is torch's own for nested tensors (`_cudnn_attention_forward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from octavo.attention.backend import AttentionShape
from octavo.context import Batch
from octavo.ops.room import power_of_2, token_room

LONGEST = 1024  # the longest prompt is rounded up to a power of two, this one at least
WORTH_FLOP = 1e11  # a layer's work from which on it pays: about 0.1 ms is saved, and 0.04 ms taken by gathering and by calling
DTYPES = frozenset({torch.bfloat16, torch.float16})


@dataclass(frozen=True)
class Prompts:
    """The last slices of a batch, whose contexts are wholly in it."""

    first_token: int
    num_tokens: int  # of the batch
    starts: torch.Tensor  # [count + 1] int32, those in excess at the end
    longest: int  # rounded up


def prompts(batch: Batch) -> Prompts:
    num, longest = len(batch.fresh), max(power_of_2(max(batch.fresh)), LONGEST)
    count = max(2 * token_room(batch.num_tokens) // longest, power_of_2(num))
    starts = torch.nn.functional.pad(batch.starts[batch.num_slices - num : batch.num_slices + 1], (0, count - num), value=batch.num_tokens)
    return Prompts(batch.num_tokens - sum(batch.fresh), batch.num_tokens, starts, longest)


def fits(fresh: tuple[int, ...], q: torch.Tensor, shape: AttentionShape) -> bool:
    """Whether cuDNN can do these prompts, of so many tokens each, and is worth its start."""
    if not fresh:
        return False
    window = shape.window is None or shape.window >= max(fresh)
    work = 2 * shape.heads * shape.head_dim * sum(count * (count + 1) for count in fresh)
    has_room = q.untyped_storage().nbytes() >= (token_room(q.shape[0]) * q.stride(0) + q.storage_offset()) * q.element_size()
    return work >= WORTH_FLOP and window and shape.softcap is None and shape.head_dim <= 128 and q.dtype in DTYPES and has_room


@cache
def available(device: torch.device) -> bool:
    """From sm_90 on, and from the torch on that keeps plans of ragged calls."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return False
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return version >= (2, 11) and torch.backends.cudnn.is_available()


def attend(
    prompts: Prompts, q: torch.Tensor, kv: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """Attention of the prompts' tokens, whose K and V lie in `kv`, with its scales, at `slots`.

    q [T, heads, head_dim], with memory for `token_room(T)` -> [T, heads, head_dim], of which the tokens before the prompts are not written.
    """
    from octavo.attention.triton_gather import gather

    room = token_room(q.shape[0])
    k, v = gather(kv, scales, slots, prompts.first_token, prompts.num_tokens, room, q.dtype)  # [room, kv_heads, head_dim] each
    wide = q.as_strided((room, *q.shape[1:]), q.stride())
    return ragged(wide, k, v, prompts.starts, prompts.longest, shape.scale)[: q.shape[0]]


def ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor, longest: int, scale: float) -> torch.Tensor:
    """Causal attention of the sequences that lie at `starts` in q [room, heads, head_dim] and k, v [room, kv_heads, head_dim]."""
    call = torch.ops.aten._cudnn_attention_forward
    return call(q, k, v, None, starts, starts, longest, longest, True, 0.0, True, False, scale=scale)[0]
