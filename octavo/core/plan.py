"""The plan of one step: what the scheduler tells every rank to do. Records and deltas only, so a decode step stays a few kB.

A plan is applied in this order: retired rows, admitted rows, grown block tables, newest tokens, then the slices run together as one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from octavo.types import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Slice:
    """How far one sequence advances in this step.

    It has no start: the device row knows how far it is (`rows.computed`). The first `len(tokens)` of the `count` positions are fed
    from `tokens`, which the host knows; without them the row feeds what it holds itself: the token sampled last, then its drafts.
    With drafts `count` is an upper bound.
    """

    row: int
    generation: int  # of the row: a slice whose generation is over is ignored at commit
    count: int
    drafts: int  # how many of the count are drafted tokens to verify
    sample: bool  # whether the last position is the newest of the sequence, so that a token is sampled there
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence takes a row: everything a rank needs to know of it, also when it resumes after preemption."""

    row: int
    generation: int
    params: SamplingParams
    index: int  # which of the request's n continuations; part of the random seed
    tokens: tuple[int, ...]  # prompt, and on resume the output so far
    num_prompt_tokens: int
    computed: int  # tokens whose KV is there already, from the prefix cache
    blocks: tuple[tuple[int, ...], ...]  # per group, the blocks that hold them
    seed: int = 0  # of the counter-based random numbers: the caller's, or one drawn for the request


class Growth(NamedTuple):
    """Blocks appended to the block table of one row in one group, from table index `first` on."""

    row: int
    group: int
    first: int
    blocks: tuple[int, ...]


class Plan(NamedTuple):
    """One step, for every rank. A named tuple, as is what it gave: each step makes them, several times faster than frozen dataclasses."""

    step: int
    slices: tuple[Slice, ...] = ()
    admitted: tuple[Admission, ...] = ()
    retired: tuple[int, ...] = ()
    grown: tuple[Growth, ...] = ()
    masked: tuple[int, ...] = ()  # indices of slices whose sampling waits for a grammar mask: the step runs in two halves
    # In a pipeline, (row, its newest token) of each that decodes: only the last stage has sampled it, and the host has read it since.
    newest: tuple[tuple[int, int], ...] = ()
    num_tokens_all: int = 0  # what every replica pads its step to where they share experts; a step without slices takes part with padding

    @property
    def num_tokens(self) -> int:
        return sum(piece.count for piece in self.slices)


class StepShape(NamedTuple):
    """What the time of a step depends on: counts that the host knows when it plans (with drafts, upper bounds)."""

    num_tokens: int
    num_sequences: int
    num_sampled: int  # sequences at whose last position a token is sampled
    prefill_tokens: int  # those fed by value: prompts, and what a preemption made unknown
    prefill_pairs: int  # of a prefill token and a token that it attends, itself included
    decode_context: int  # tokens whose KV the sequences read that decode


class StepOutput(NamedTuple):
    """What a step gave. `tokens[i]` belongs to slice i: the accepted ones, empty where nothing was sampled."""

    step: int
    tokens: list[list[int]]
    num_drafts: list[int] | None = None  # per slice, drafts now waiting in the row; None: no drafter
    logprobs: dict[int, list[TokenLogprobs]] | None = None  # by slice index, one entry a token
    prompt_logprobs: dict[int, list[TokenLogprobs]] | None = None  # by slice index, for positions of this slice
    pooled: dict[int, bytes] | None = None  # by slice index: the vector of a whole prompt, float32 in little-endian order
    expert_tokens: dict[int, list[int]] | None = None  # by layer: running totals of each expert, now and then
    failed: dict[int, str] | None = None  # by slice index: this sequence cannot go on (NaN logits ...), with the reason
