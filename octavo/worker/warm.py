"""First steps before the first request: ordinary plans of the kinds that come later.

After them kernels are compiled and loaded, libraries have chosen their algorithms, and the allocator has taken what the largest step needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.types import SamplingParams
from octavo.worker.runner import Runner

GREEDY = SamplingParams(temperature=0.0)
NUM_PROMPTS = 4  # that share a step
SMALLEST = 32  # tokens of each
MIXED_CHUNK = 3  # tokens of the one prompt that a mixed step reads on


def warm_up(runner: Runner, settings: Resolved) -> None:
    """Steps of the whole token budget and of ever smaller parts of it, each followed by a mixed one.

    What they leave in the KV memory is never looked at.
    """
    num_rows = min(NUM_PROMPTS, settings.max_num_seqs)
    room = min(settings.max_model_len, _tokens_that_fit(runner) // num_rows) - MIXED_CHUNK
    most = min(settings.max_num_batched_tokens // num_rows, room)
    if most < 2:
        return
    for number, each in enumerate(_halves(most)):
        rests = (MIXED_CHUNK, *(1 for _ in range(1, num_rows)))  # tokens of each row that the second step reads
        tokens = (0,) * (each + MIXED_CHUNK)
        admitted = tuple(
            Admission(row, number, GREEDY, 0, tokens[: each + rest], each + rest, 0, _blocks(runner, row, each + rest))
            for row, rest in enumerate(rests)
        )
        runner.step(Plan(number, tuple(Slice(row, number, each, 0, False, tokens[:each]) for row in range(num_rows)), admitted)).result()
        runner.step(Plan(number, tuple(Slice(row, number, rest, 0, True, tokens[:rest]) for row, rest in enumerate(rests)))).result()
        runner.rows.apply(Plan(number, retired=tuple(range(num_rows))))


def _halves(most: int) -> Iterator[int]:
    """`most`, and half of the last as long as kernels may still be other ones."""
    while most >= SMALLEST:
        yield most
        most //= 2
    yield max(most, 1)


def _tokens_that_fit(runner: Runner) -> int:
    return runner.layout.num_blocks * runner.layout.block_tokens


def _blocks(runner: Runner, row: int, num_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Blocks for so many tokens, in each group; rows may share them, since nobody reads what is written."""
    return tuple(
        tuple((row + number) % runner.layout.num_blocks for number in range(-(-num_tokens // group.block_tokens)))
        for group in runner.layout.groups
    )
