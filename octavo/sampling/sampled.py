"""What sampling gave: tensors on the device, and how they become the host's `StepOutput` with one copy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from octavo.core.plan import Plan, StepOutput
from octavo.sampling.logprobs import Scores
from octavo.types import TokenLogprobs


@dataclass(frozen=True)
class Sampled:
    """The tokens of a step. n sampled slices, each with up to 1 + K tokens where drafts were verified (K = 0: none)."""

    rows: torch.Tensor  # [n] int64
    tokens: torch.Tensor  # [n, 1 + K] int64
    peaks: torch.Tensor  # [n] float32: the largest processed logit; a sequence cannot go on where it is not finite
    accepted: torch.Tensor | None = None  # [n] int64, how many of the tokens count; None: all
    refused: torch.Tensor | None = None  # [n] int32, how many fed positions do not count; None: none
    scores: tuple[tuple[tuple[int, ...], Scores], ...] = ()  # log-probabilities, each with the indices in n they belong to

    @property
    def newest(self) -> torch.Tensor:
        """[n] int64: the last token that counts."""
        if self.accepted is None:
            return self.tokens[:, -1]
        return self.tokens.gather(1, self.accepted[:, None] - 1)[:, 0]

    def to_output(self, plan: Plan, prompt: Mapping[int, Scores] | None = None) -> StepOutput:
        """Copy to the host, once, and sort by slice. Waits for the device. `prompt`: scores of prompt tokens by slice index."""
        prompt = prompt or {}
        parts = [self.tokens, self.peaks] + ([] if self.accepted is None else [self.accepted])
        for scores in (*(scores for _, scores in self.scores), *prompt.values()):
            parts += [scores.token_ids, scores.logprobs, scores.ranks]
        host = iter(_to_host(parts))

        tokens, peaks = next(host).tolist(), next(host).tolist()
        if self.accepted is not None:
            tokens = [row[:count] for row, count in zip(tokens, next(host).tolist())]
        by_index = {i: entry for at, _ in self.scores for i, entry in zip(at, _entries(host))}
        prompt_entries = {index: _entries(host) for index in prompt}

        at = [i for i, piece in enumerate(plan.slices) if piece.sample]
        by_slice: list[list[int]] = [[] for _ in plan.slices]
        failed: dict[int, str] = {}
        for i, row, peak in zip(at, tokens, peaks):
            if math.isfinite(peak):
                by_slice[i] = row
            else:
                failed[i] = _reason(peak)
        return StepOutput(
            step=plan.step,
            tokens=by_slice,
            logprobs={at[i]: [entry] for i, entry in by_index.items() if at[i] not in failed} or None,
            prompt_logprobs=prompt_entries or None,
            failed=failed or None,
        )


def _to_host(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the host, by one copy: float64 holds token ids and float32 numbers exactly."""
    if parts[0].device.type == "cpu":
        return list(parts)
    flat = torch.cat([part.reshape(-1).to(torch.float64) for part in parts]).cpu()
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape).to(part.dtype) for piece, part in zip(pieces, parts)]


def _entries(host: Iterator[torch.Tensor]) -> list[TokenLogprobs]:
    ids, logprobs, ranks = next(host).tolist(), next(host).tolist(), next(host).tolist()
    return [TokenLogprobs(tuple(i), tuple(p), r) for i, p, r in zip(ids, logprobs, ranks)]


def _reason(peak: float) -> str:
    if math.isnan(peak):
        return "the model's logits are not numbers (NaN)"
    if peak < 0:
        return "no token is allowed: the constraints on the next token exclude the whole vocabulary"
    return "the model's logits are infinite"
