"""Kernels of one rank of several GPUs: where its steps' time goes on the device.

    PYTHONPATH=. python bench/gpu/ranks.py MODEL CASE --first N --steps M [--flags JSON]

Runs a case in an engine of several ranks, of which rank 0 looks at steps N to N + M with torch's profiler, and prints runs of like steps as
the engine saw them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from octavo import LLM
from octavo.bench.offline import run_once, warm_up
from octavo.bench.workloads import CASES, draw
from octavo.engine import build as engine_build
from octavo.engine.workers import Workers

SPAN = "OCTAVO_PROFILED_STEPS"  # first and number, from the engine's process to the ranks'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--first", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--flags", default='{"tensor_parallel_size": 2}')
    asked = parser.parse_args()
    os.environ[SPAN] = f"{asked.first},{asked.steps}"
    engine_build.Workers = profiled_workers
    llm = LLM(asked.model, load_format="dummy", skip_tokenizer_init=True, **json.loads(asked.flags))
    vocab = llm.info["vocab_size"]
    warm_up(llm, vocab)
    known = len(llm.get_step_log())
    seconds, num_tokens = run_once(llm, draw(CASES[asked.case], vocab, 1))
    timings = llm.get_step_log()[known:]
    lines = [(t.shape.num_tokens, t.shape.num_sequences, t.shape.prefill_tokens, t.seconds * 1e3) for t in timings]
    print(f"{asked.case}: {seconds:.3f} s, {num_tokens} tokens, {len(lines)} steps")
    show_steps(lines)
    llm.close()


def profiled_workers(build, args, *others, **named):
    assert build == "octavo.engine.build:build_worker"
    return Workers("bench.gpu.ranks:build_worker", args, *others, **named)


def build_worker(rank, *args):
    """A worker whose rank 0 profiles some of its steps after the warm-up request's."""
    runner, told = engine_build.build_worker(rank, *args)
    if rank == 0:
        first, count = (int(part) for part in os.environ[SPAN].split(","))
        plain, recorder, number = runner.step, None, 0

        def step(plan):
            nonlocal recorder, number
            number += 1
            if number == first:
                torch.cuda.synchronize()
                recorder = profile(activities=[ProfilerActivity.CUDA])
                recorder.__enter__()
            if number == first + count and recorder is not None:
                torch.cuda.synchronize()
                recorder.__exit__(None, None, None)
                show_kernels(recorder, count)
                recorder = None
            return plain(plan)

        runner.step = step
    return runner, told


def show_kernels(recorder, num_steps: int) -> None:
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in recorder.events() if e.device_type.name == "CUDA")
    by_name: dict[str, list[float]] = defaultdict(list)
    idle_us, last = 0.0, spans[0][0]
    for start, end, name in spans:
        by_name[name].append(end - start)
        idle_us += max(0.0, start - last)
        last = max(last, end)
    wall_us = last - spans[0][0]
    print(f"rank 0: {num_steps} steps, {wall_us / num_steps / 1e3:.3f} ms each, idle {100 * idle_us / wall_us:.1f} %", flush=True)
    for total, calls, name in sorted(((sum(times), len(times), name) for name, times in by_name.items()), reverse=True)[:18]:
        times = sorted(by_name[name])
        each = f"{calls / num_steps:6.1f} x  median {times[len(times) // 2]:8.1f} us  least {times[0]:8.1f}"
        print(f"us a step {total / num_steps:9.1f} {each}  {name[:80]}", flush=True)


def show_steps(lines) -> None:
    """Steps with prompts alone, pure decodes by forties."""
    group: list = []
    for line in [*lines, (0, 0, 1, 0.0)]:
        if line[2] or len(group) == 40:
            if group:
                print(f"{len(group)} decodes of {group[0][1]} sequences: {sum(one[3] for one in group) / len(group):.2f} ms each")
            group = []
        if line[2] and line[0]:
            print(f"1 step of {line[0]} tokens, {line[1]} sequences, {line[2]} of prompts: {line[3]:.2f} ms")
        elif line[0]:
            group.append(line)


if __name__ == "__main__":
    begin = time.time()
    main()
    print(f"{time.time() - begin:.1f} s")
