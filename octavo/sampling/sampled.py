"""What sampling gave: tensors on the device, and how they become the host's `StepOutput` with one copy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from octavo.core.plan import Plan, StepOutput
from octavo.sampling.logprobs import Scores, entries
from octavo.sampling.reader import Reading


@dataclass(frozen=True)
class Sampled:
    """The tokens of a step. n sampled slices, each with up to 1 + K tokens where drafts were verified (K = 0: none)."""

    rows: torch.Tensor  # [n] int64
    tokens: torch.Tensor  # [n, 1 + K] int64
    peaks: torch.Tensor  # [n] float32: the largest processed logit; a sequence cannot go on where it is not finite
    accepted: torch.Tensor | None = None  # [n] int64, how many of the tokens count; None: all
    refused: torch.Tensor | None = None  # [n] int32, how many fed positions do not count; None: none
    scores: tuple[tuple[tuple[int, ...], Scores], ...] = ()  # log-probabilities, each with the indices in n they belong to
    packed: torch.Tensor | None = None  # [2, n] float64: tokens and peaks once more, ready to be copied

    @property
    def newest(self) -> torch.Tensor:
        """[n] int64: the last token that counts."""
        if self.accepted is None:
            return self.tokens[:, -1]
        return self.tokens.gather(1, self.accepted[:, None] - 1)[:, 0]

    def first(self, num_slices: int) -> Sampled:
        """The same of the first sampled slices only, where the rest is padding."""
        return replace(self, rows=self.rows[:num_slices], tokens=self.tokens[:num_slices], peaks=self.peaks[:num_slices])

    def copied(self) -> Sampled:
        """With the plain outcome in memory of its own, which the next step leaves alone."""
        return replace(self, tokens=self.tokens.clone(), peaks=self.peaks.clone())

    def pack(self) -> Sampled:
        """With the plain outcome laid out for one copy: what a graph does, so that nothing is left to do behind it."""
        assert self.tokens.shape[1] == 1, "drafts are not packed"
        packed = torch.empty(2, len(self.peaks), dtype=torch.float64, device=self.peaks.device)
        packed[0], packed[1] = self.tokens[:, 0], self.peaks  # one kernel each, with the widening
        return replace(self, packed=packed)

    def fetch(self, plan: Plan, readings: Sequence[Reading] = ()) -> Fetching:
        """Start the one copy to the host, of what was sampled and of what readers found."""
        parts = [self.tokens, self.peaks] + ([] if self.accepted is None else [self.accepted])
        for _, scores in self.scores:
            parts += [scores.token_ids, scores.logprobs, scores.ranks]
        readings = [reading for reading in readings if reading.found]
        for reading in readings:
            for tensors in reading.found.values():
                parts += tensors
        copied, arrived = _start_copy(parts if self.packed is None else [self.packed])
        return Fetching(plan, tuple(at for at, _ in self.scores), readings, self.accepted is not None, parts, copied, arrived)


def joined(parts: Sequence[Sampled]) -> Sampled:
    """What parts of the sampled positions came to, one after the other, as one."""
    firsts = [0, *itertools.accumulate(len(part.rows) for part in parts)]
    scores = tuple((tuple(first + i for i in at), found) for first, part in zip(firsts, parts) for at, found in part.scores)
    rows, tokens, peaks = (torch.cat([getattr(part, name) for part in parts]) for name in ("rows", "tokens", "peaks"))
    return Sampled(rows, tokens, peaks, scores=scores)


@dataclass(frozen=True)
class Fetching:
    """A step whose outcome is on its way to the host."""

    plan: Plan
    scored: tuple[tuple[int, ...], ...]  # for each part of the scores, the indices in n they belong to
    readings: Sequence[Reading]  # that found something
    counted: bool  # whether not all tokens count
    parts: Sequence[torch.Tensor]  # on the device
    copied: torch.Tensor | None  # their values one after the other in pinned host memory; None: the parts are on the host
    arrived: torch.cuda.Event | None

    def result(self) -> StepOutput:
        """Wait for the copy, and sort by slice."""
        plan = self.plan
        host = iter(self._host())
        tokens, peaks = next(host).tolist(), next(host).tolist()
        if self.counted:
            tokens = [row[:count] for row, count in zip(tokens, next(host).tolist())]
        by_index = {i: entry for at in self.scored for i, entry in zip(at, entries([next(host) for _ in range(3)]))}
        read: dict[str, Any] = {
            reading.name: {index: reading.entry([next(host) for _ in tensors]) for index, tensors in reading.found.items()}
            for reading in self.readings
        }

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
            failed=failed or None,
            **read,
        )

    def _host(self) -> Sequence[torch.Tensor]:
        if self.copied is None or self.arrived is None:
            return self.parts
        self.arrived.synchronize()
        if self.copied.numel() != sum(part.numel() for part in self.parts):  # packed with its padding
            tokens, peaks = self.copied.view(2, -1)[:, : len(self.parts[0])]
            return [tokens[:, None].to(torch.int64), peaks]
        pieces = self.copied.split([part.numel() for part in self.parts])
        return [piece.view(part.shape).to(part.dtype) for piece, part in zip(pieces, self.parts)]


def _start_copy(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.cuda.Event | None]:
    """All parts to pinned memory by one copy that the host does not wait for: float64 holds token ids and float32 numbers exactly."""
    if not parts[0].is_cuda:
        return None, None
    flat = parts[0].view(-1) if len(parts) == 1 else torch.cat([part.reshape(-1).to(torch.float64) for part in parts])
    host = torch.empty(flat.shape, dtype=torch.float64, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived


def _reason(peak: float) -> str:
    if math.isnan(peak):
        return "the model's logits are not numbers (NaN)"
    if peak < 0:
        return "no token is allowed: the constraints on the next token exclude the whole vocabulary"
    return "the model's logits are infinite"
