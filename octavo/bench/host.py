"""What the brain costs: host time to plan and commit one decode step, by number of sequences. Prints JSON.

    python -m octavo.bench.host [--sequences 256 1024] [--steps 400]

Times are CPU time of the one thread, so that other load on the machine counts little. Nothing is computed: every step's outcome is made up
beforehand, so all the time measured is the scheduler's and the cache's.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import KVSpec, PagedSpec, WindowSpec
from octavo.core.plan import Plan, StepOutput
from octavo.core.scheduler import Scheduler
from octavo.host.collector import collect_seldom
from octavo.types import Request, SamplingParams

PROMPT_TOKENS = 64


def build(num_sequences: int, num_steps: int, depth: int, hybrid: bool, caching: bool) -> Scheduler:
    max_model_len = PROMPT_TOKENS + num_steps + 16
    spec = PagedSpec(1, 64)
    specs: list[KVSpec] = [spec, *([WindowSpec(1, 64, 128)] * 5 if hybrid else [])]
    settings = Resolved(
        max_model_len=max_model_len,
        enable_prefix_caching=caching,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * PROMPT_TOKENS,
        overlap_depth=depth,
    )
    layout = lay_out(specs, settings.block_size, spec.token_bytes * len(specs) * num_sequences * (max_model_len + settings.block_size))
    scheduler = Scheduler(settings, KVCache(layout, caching))
    params = SamplingParams(max_tokens=None, eos_token_ids=(2,))
    # Lengths are spread over a block, so that blocks fill evenly over the steps.
    lengths = [PROMPT_TOKENS - i % settings.block_size for i in range(num_sequences)]
    scheduler.add([Request(str(i), (i % 30_000 + 3,) * length, params) for i, length in enumerate(lengths)])
    return scheduler


def measure(num_sequences: int, num_steps: int, depth: int = 1, hybrid: bool = False, caching: bool = True) -> dict[str, object]:
    """Medians over `num_steps` decode steps, in microseconds."""
    scheduler = build(num_sequences, num_steps, depth, hybrid, caching)
    flight: list[Plan] = []
    plan_s: list[float] = []
    commit_s: list[float] = []
    gc.collect()
    gc.freeze()
    collect_seldom()  # as in the engine's process
    for step in range(num_steps):
        started = time.thread_time()
        plan = scheduler.plan(float(step))
        planned = time.thread_time()
        assert plan is not None
        flight.append(plan)
        if len(flight) > depth:
            done = flight.pop(0)
            output = StepOutput(done.step, [[3 + step % 1000] if piece.sample else [] for piece in done.slices])
            before = time.thread_time()
            scheduler.commit(done, output, float(step))
            commit_s.append(time.thread_time() - before)
            plan_s.append(planned - started)
    steady = slice(num_steps // 10, None)  # without the prompts
    both = [a + b for a, b in zip(plan_s[steady], commit_s[steady])]
    return {
        "num_sequences": num_sequences,
        "overlap_depth": depth,
        "kv_groups": len(scheduler.cache.layout.groups),
        "prefix_caching": caching,
        "plan_us": round(statistics.median(plan_s[steady]) * 1e6, 1),
        "commit_us": round(statistics.median(commit_s[steady]) * 1e6, 1),
        "total_us": round(statistics.median(both) * 1e6, 1),
        "mean_us": round(statistics.fmean(both) * 1e6, 1),
        "worst_us": round(max(both) * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    runs = [measure(n, asked.steps, depth=depth) for n in asked.sequences for depth in (0, 1)]
    runs += [measure(n, asked.steps, hybrid=True) for n in asked.sequences]
    runs += [measure(n, asked.steps, caching=False) for n in asked.sequences]
    print(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
