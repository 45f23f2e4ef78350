"""Log-probabilities of tokens, of the model's own distribution: before masks, penalties and temperature.

The rank of a token counts those that are at least as likely, itself included, so it starts from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.types import TokenLogprobs


@dataclass(frozen=True)
class Scores:
    """Of M positions: the token in question first, then the k most likely ones in falling order."""

    token_ids: torch.Tensor  # [M, 1 + k] int64
    logprobs: torch.Tensor  # [M, 1 + k] float32
    ranks: torch.Tensor  # [M] int64, of the token in question


def score(logits: torch.Tensor, tokens: torch.Tensor, k: int) -> Scores:
    """Score `tokens` [M] int64 under `logits` [M, vocab] float32; k alternatives each, -1: the whole vocabulary.

    A token past the logits' width (a placeholder of media in a prompt) has log-probability -inf.
    """
    k = logits.shape[1] if k < 0 else min(k, logits.shape[1])
    known = (tokens < logits.shape[1])[:, None]
    chosen = logits.gather(1, tokens.clamp(max=logits.shape[1] - 1)[:, None])  # [M, 1]
    chosen = torch.where(known, chosen, -torch.inf)
    ranks = (logits >= chosen).sum(-1)
    values, ids = logits.topk(k, dim=-1)
    peak = logits.amax(-1, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0.0)
    # In float64, as a device adds in another order where there are more positions, and the sum must be the same to float32's last bit.
    norm = peak + (logits - peak).exp().sum(-1, keepdim=True, dtype=torch.float64).log().float()
    return Scores(torch.cat((tokens[:, None], ids), 1), torch.cat((chosen, values), 1) - norm, ranks)


def entries(tensors: Sequence[torch.Tensor]) -> list[TokenLogprobs]:
    """The token ids, log-probabilities and ranks of `Scores`, copied to the host, position by position."""
    ids, logprobs, ranks = (tensor.tolist() for tensor in tensors)
    return [TokenLogprobs(tuple(i), tuple(p), r) for i, p, r in zip(ids, logprobs, ranks)]
