"""First steps before the first request: ordinary plans of the kinds that come later.

After them kernels are compiled and loaded, libraries have chosen their algorithms, and the allocator has taken what the largest step needs:
memory that it first has to ask the driver for stops the host until the device is idle.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.types import SamplingParams
from octavo.worker.batch import padded_sizes
from octavo.worker.runner import Runner

GREEDY = SamplingParams(temperature=0.0)
NUM_PROMPTS = 4  # that share a step of the whole budget
MORE_PROMPTS = 100  # with as many sequences kernels may be other ones, as with the most that there can be
SMALLEST = 32  # tokens of each
MIXED_CHUNK = 3  # tokens of the one prompt that a mixed step reads on


def warm_up(runner: Runner, settings: Resolved) -> None:
    """Steps of prompts, and for each number of them a mixed one that samples them all.

    A few prompts that fill the token budget, and ever smaller parts of it; then many short ones, in all numbers that no graph is captured
    for. What they leave in the KV memory is never looked at.
    """
    most_rows = settings.max_num_seqs
    few = min(NUM_PROMPTS, most_rows)
    for number, each in enumerate(_halves(settings.max_num_batched_tokens // few)):
        _step_twice(runner, settings, few, each, mixed=number == 0)
    _step_twice(runner, settings, min(MORE_PROMPTS, most_rows), SMALLEST // 2)
    _step_twice(runner, settings, most_rows, SMALLEST // 2)
    captured = max(settings.graph_sizes, default=most_rows) if settings.graph_mode != "PIECEWISE" else 0  # there no step samples in a graph
    for size in padded_sizes(settings):
        if size > captured:
            _step_twice(runner, settings, max(1, size - MIXED_CHUNK + 1), 2)


def _step_twice(runner: Runner, settings: Resolved, num_rows: int, each: int, mixed: bool = True) -> None:
    """A step of `num_rows` prompts of `each` tokens, or of as many as fit, then if `mixed` one that reads on in the first and decodes the
    others."""
    room = min(settings.max_model_len, _tokens_that_fit(runner) // num_rows) - MIXED_CHUNK
    each = min(each, settings.max_num_batched_tokens // num_rows, room)
    if each < 1 or num_rows + MIXED_CHUNK - 1 > settings.max_num_batched_tokens:
        return
    rests = (MIXED_CHUNK, *(1 for _ in range(1, num_rows)))  # tokens of each row that the second step reads
    tokens = (0,) * (each + MIXED_CHUNK)
    admitted = tuple(
        Admission(row, each, GREEDY, 0, tokens[: each + rest], each + rest, 0, shared_blocks(runner, row, each + rest))
        for row, rest in enumerate(rests)
    )
    runner.step(Plan(each, tuple(Slice(row, each, each, 0, False, tokens[:each]) for row in range(num_rows)), admitted)).result()
    if mixed:
        runner.step(Plan(each, tuple(Slice(row, each, rest, 0, True, tokens[:rest]) for row, rest in enumerate(rests)))).result()
    runner.rows.apply(Plan(each, retired=tuple(range(num_rows))))


def _halves(most: int) -> Iterator[int]:
    """`most`, and half of the last as long as kernels may still be other ones."""
    while most >= SMALLEST:
        yield most
        most //= 2
    yield max(most, 1)


def _tokens_that_fit(runner: Runner) -> int:
    return runner.layout.num_blocks * runner.layout.block_tokens


def shared_blocks(runner: Runner, row: int, num_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Blocks for so many tokens, in each group; rows may share them, since nobody reads what is written."""
    return tuple(
        tuple((row + number) % runner.layout.num_blocks for number in range(-(-num_tokens // group.block_tokens)))
        for group in runner.layout.groups
    )
