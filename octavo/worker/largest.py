"""The largest step that there can be, tried once before the first request: what it takes is compared with the plan, and must fit.

It is an ordinary plan: as many sequences and tokens as a step may have, all of which draw a token from truncated probabilities.
"""

from __future__ import annotations

import logging

import torch

from octavo.config.fields import ConfigError
from octavo.config.resolved import Resolved
from octavo.core.plan import Admission, Plan, Slice
from octavo.plan.memory import Costs
from octavo.plan.report import size
from octavo.types import SamplingParams
from octavo.worker.runner import Runner
from octavo.worker.warm import shared_blocks

log = logging.getLogger(__name__)

DRAWN = SamplingParams(temperature=1.0, top_p=0.9)


def largest_step_bytes(runner: Runner, settings: Resolved, costs: Costs) -> int:
    """Bytes of a GPU that the step takes at most, beside what is held. Warns where they are more than planned.

    Raises `ConfigError` where there is no room for it.
    """
    device = runner.rows.device
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # of what smaller steps have left in pieces; what this one takes, all others find room in
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        take_largest_step(runner, settings)
    except torch.OutOfMemoryError:
        raise ConfigError(
            "kv_cache_memory_bytes", settings.kv_bytes,
            f"a step of {settings.max_num_batched_tokens:,} tokens and {settings.max_num_seqs:,} sequences does not fit beside it; "
            "lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs",
        ) from None  # fmt: skip
    taken = torch.cuda.max_memory_allocated(device) - before
    tell(taken, costs)
    return taken


def tell(taken: int, costs: Costs) -> None:
    planned = costs.activation_bytes + costs.logits_bytes
    if taken > planned:
        log.warning("the largest step takes %s, and %s were planned: %s of the reserve", size(taken), size(planned), size(taken - planned))


def take_largest_step(runner: Runner, settings: Resolved) -> None:
    """What it leaves in the KV memory is never looked at."""
    budget = settings.max_num_batched_tokens
    num_rows = min(settings.max_num_seqs, budget)
    most = min(settings.max_model_len, runner.layout.num_blocks * runner.layout.block_tokens // num_rows) - 1
    each = max(1, min(budget // num_rows, most))
    counts = [max(each, min(budget - (num_rows - 1) * each, most)), *[each] * (num_rows - 1)]
    admitted = tuple(
        Admission(row, count, DRAWN, row, (0,) * count, count, 0, shared_blocks(runner, row, count)) for row, count in enumerate(counts)
    )
    slices = tuple(Slice(row, count, count, 0, True, (0,) * count) for row, count in enumerate(counts))
    runner.step(Plan(0, slices, admitted)).result()
    runner.rows.apply(Plan(0, retired=tuple(range(num_rows))))
