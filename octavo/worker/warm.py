"""First steps before the first request: ordinary plans of the kinds that come later.

After them kernels are compiled and loaded, libraries have chosen their algorithms, and the allocator has taken what the largest step needs.
"""

from __future__ import annotations

from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.types import SamplingParams
from octavo.worker.runner import Runner

GREEDY = SamplingParams(temperature=0.0)
NUM_PROMPTS = 4  # that share the largest step


def warm_up(runner: Runner, settings: Resolved) -> None:
    """A step of one short prompt, one of the whole token budget, and a mixed one. What they leave in the KV memory is never looked at."""
    num_rows = min(NUM_PROMPTS, settings.max_num_seqs - 1)
    each = min(settings.max_num_batched_tokens // max(num_rows, 1), settings.max_model_len - 2, _tokens_that_fit(runner) // NUM_PROMPTS)
    if num_rows < 1 or each < 2:
        return
    rows = range(num_rows)
    tokens = (0,) * each
    short = Admission(num_rows, 1, GREEDY, 0, tokens[:2], 2, 0, _blocks(runner, num_rows, 2))
    prompts = tuple(Admission(row, 1, GREEDY, 0, tokens, each, 0, _blocks(runner, row, each)) for row in rows)
    plans = (
        Plan(1, (Slice(num_rows, 1, 1, 0, False, tokens[:1]),), (short,)),
        Plan(2, tuple(Slice(row, 1, each - 1, 0, False, tokens[1:]) for row in rows), prompts),
        Plan(3, (*(Slice(row, 1, 1, 0, True, tokens[:1]) for row in rows), Slice(num_rows, 1, 1, 0, True, tokens[:1]))),
        Plan(4, retired=tuple(range(num_rows + 1))),
    )
    for plan in plans[:-1]:
        runner.step(plan).result()
    runner.rows.apply(plans[-1])


def _tokens_that_fit(runner: Runner) -> int:
    return runner.layout.num_blocks * runner.layout.block_tokens


def _blocks(runner: Runner, row: int, num_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Blocks for so many tokens, in each group; rows may share them, since nobody reads what is written."""
    return tuple(
        tuple((row + number) % runner.layout.num_blocks for number in range(-(-num_tokens // group.block_tokens)))
        for group in runner.layout.groups
    )
