"""Is what is measured also right? Compares the logits of a level with those of -O0 on the same weights and tokens, at workloads' shapes.

Both levels are fed the very same tokens, so that errors do not grow with sampled texts: for each workload a prefill of all prompts and
decode steps, then one sequence of the longest context with a decode step after it. Where there are graphs, decode steps then run once more
as the engine runs them, and must sample what the logits say.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.models.checkpoint import Checkpoint
from octavo.parallel.mesh import Mesh
from octavo.plan.memory import kv_bytes_per_token
from octavo.types import SamplingParams
from octavo.worker.build import build_runner
from octavo.worker.runner import Runner

NUM_DECODE_STEPS = 8
ALONE = Mesh()
TOLERANCE = {"bfloat16": 3e-2, "float16": 1e-2, "float32": 1e-3}  # of |logits - reference| / |reference| in a step
PACKED_TOLERANCE = 2e-2  # products with packed weights round x to 8 bits, and to 15 where groups stand out: up to 0.011 seen
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=NUM_DECODE_STEPS + 1)


@dataclass(frozen=True)
class Fed:
    """A sequence whose tokens are given, never sampled: a prompt, and one token for each decode step after it."""

    row: int
    prompt: tuple[int, ...]
    after: tuple[int, ...]
    blocks: tuple[int, ...]


Steps = dict[str, tuple[torch.Tensor, int]]  # by name: logits [N, vocab], and how many sampled tokens are not the ones that they say
LONGEST = "longest"


def compare_with_reference(
    settings: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    workloads: Mapping[str, Sequence[Sequence[int]]],
    mesh: Mesh = ALONE,
) -> dict[str, dict[str, Any]]:
    """By workload, and for the longest context: the errors of the level in `settings` by step, and whether it is right.

    `workloads` are prompts by name, at most `max_num_seqs` of each. For models with one KV group, with dummy or real weights. On several
    ranks, each with its `mesh`, all call this.
    """
    random = Random(0)

    def drawn(count: int) -> tuple[int, ...]:
        return tuple(random.randrange(architecture.vocab) for _ in range(count))

    texts = {name: [(tuple(prompt), drawn(NUM_DECODE_STEPS)) for prompt in prompts] for name, prompts in workloads.items()}
    texts[LONGEST] = [(drawn(settings.max_model_len - 2), drawn(1))]
    sequences = {name: list(_laid_out(given, settings.block_size)) for name, given in texts.items()}
    num_blocks = max(given[-1].blocks[-1] for given in sequences.values()) + 1
    kv_bytes = num_blocks * settings.block_size * kv_bytes_per_token(architecture, settings.kv_dtype)
    fast = replace(settings, kv_bytes=kv_bytes)
    reference = replace(fast, optimization_level=0, graph_sizes=(), pass_sizes=(), attention_backend="reference")
    measured = _run(fast, architecture, checkpoint, sequences, mesh)
    expected = _run(reference, architecture, checkpoint, sequences, mesh)
    tolerance = max(TOLERANCE[settings.dtype], PACKED_TOLERANCE if settings.quantization != "none" else 0.0)
    return {name: _compared(measured[name], expected[name], tolerance) for name in sequences}


def _compared(measured: Steps, expected: Steps, tolerance: float) -> dict[str, Any]:
    errors = {name: _error(logits, expected[name][0]) for name, (logits, _) in measured.items()}
    unlike = sum(differing for _, differing in measured.values())
    right = all(error <= tolerance for error in errors.values()) and unlike == 0
    return {"right": right, "tolerance": tolerance, "errors": errors, "sampled_unlike_logits": unlike}


def _laid_out(texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], block_size: int) -> Iterator[Fed]:
    """The sequences in rows and blocks one after the other."""
    first = 0
    for row, (prompt, after) in enumerate(texts):
        num_blocks = -(-(len(prompt) + len(after)) // block_size)
        yield Fed(row, prompt, after, tuple(range(first, first + num_blocks)))
        first += num_blocks


def _run(
    settings: Resolved, architecture: Architecture, checkpoint: Checkpoint, workloads: Mapping[str, Sequence[Fed]], mesh: Mesh
) -> dict[str, Steps]:
    runner = build_runner(settings, architecture, checkpoint, lambda name: nullcontext(), lambda: mesh)
    found: dict[str, Steps] = {}
    for name, sequences in workloads.items():
        steps = found[name] = {"prefill": _prefill(runner, sequences, settings.max_num_batched_tokens)}
        for number in range(len(sequences[0].after)):
            steps[f"decode {number + 1}"] = _decode(runner, sequences, number, again=bool(settings.graph_sizes))
        runner.rows.apply(Plan(0, retired=tuple(sequence.row for sequence in sequences)))
    runner.close()
    del runner
    gc.collect()  # the arena and graphs hold each other
    if settings.device == "cuda":
        torch.cuda.empty_cache()
    return found


def _prefill(runner: Runner, sequences: Sequence[Fed], budget: int) -> tuple[torch.Tensor, int]:
    """Read all prompts, as many tokens a step as the budget allows; the logits after each prompt's last token."""
    plans: list[tuple[list[Admission], list[Slice]]] = []
    left = 0
    for sequence in sequences:
        admission = Admission(sequence.row, 1, GREEDY, 0, sequence.prompt, len(sequence.prompt), 0, (sequence.blocks,))
        start = 0
        while start < len(sequence.prompt):
            if left == 0:
                plans.append(([], []))
                left = budget
            count = min(left, len(sequence.prompt) - start)
            end = start + count
            admitted, slices = plans[-1]
            if start == 0:
                admitted.append(admission)
            slices.append(Slice(sequence.row, 1, count, 0, end == len(sequence.prompt), sequence.prompt[start:end]))
            start, left = end, left - count
    logits: list[torch.Tensor] = []
    unlike = 0
    for number, (admitted, slices) in enumerate(plans):
        plan = Plan(number, tuple(slices), tuple(admitted))
        runner.forward(plan)
        logits.append(runner.waiting_logits())
        unlike += _num_unlike(runner.sample(plan).result().tokens, logits[-1])
    return torch.cat(logits), unlike


def _decode(runner: Runner, sequences: Sequence[Fed], number: int, again: bool) -> tuple[torch.Tensor, int]:
    """One given token each, op by op for the logits; then `again` as the engine runs it, where that is something else."""
    for sequence in sequences:
        runner.rows.last_token[sequence.row] = sequence.after[number]
    plan = Plan(0, tuple(Slice(sequence.row, 1, 1, 0, True) for sequence in sequences))
    runner.forward(plan)
    logits = runner.waiting_logits()
    sampled = runner.step(plan) if again else runner.sample(plan)
    return logits, _num_unlike(sampled.result().tokens, logits)


def _num_unlike(sampled: Sequence[Sequence[int]], logits: torch.Tensor) -> int:
    """How many greedy tokens have a logit that is clearly under the largest: by over a tenth of the spread of the row's logits."""
    if not len(logits):
        return 0
    tokens = torch.tensor([given[0] for given in sampled if given], device=logits.device)
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return int((logits.amax(-1) - chosen > 0.1 * logits.std(-1)).sum())


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
