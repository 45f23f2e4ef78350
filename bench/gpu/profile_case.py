"""Where a workload's time goes on the device: kernels by time, and how long the device was idle between them.

    python bench/gpu/profile_case.py MODEL CASE [--tokens N] [flags as JSON]

Writes profile-CASE.json to $OUT and prints a table. Runs the case's prompts with at most N output tokens under torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from octavo import LLM
from octavo.bench.offline import run_once, warm_up
from octavo.bench.workloads import CASES, draw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("flags", nargs="?", default="{}")
    asked = parser.parse_args()
    llm = LLM(asked.model, load_format="dummy", skip_tokenizer_init=True, **json.loads(asked.flags))
    print("start:", llm.info["timeline"], flush=True)
    vocab = llm.info["vocab_size"]
    warm_up(llm, vocab)
    case = CASES[asked.case]
    drawn = draw(replace(case, num_prompts=min(case.num_prompts, asked.prompts)), vocab, 1)
    drawn = replace(drawn, output_lens=tuple(min(length, asked.tokens) for length in drawn.output_lens))
    begin_s = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU] if asked.tokens <= 4 else [ProfilerActivity.CUDA]) as recorded:
        seconds, num_tokens = run_once(llm, drawn)
        torch.cuda.synchronize()
    print(f"{num_tokens} tokens in {seconds:.3f} s under the profiler ({time.perf_counter() - begin_s:.1f} s)")
    spans = sorted((e.time_range.start, e.time_range.end, e.name) for e in recorded.events() if e.device_type.name == "CUDA")
    by_name: dict[str, list[float]] = defaultdict(list)
    idle_us = 0.0
    last = spans[0][0]
    for start, end, name in spans:
        by_name[name].append(end - start)
        idle_us += max(0.0, start - last)
        last = max(last, end)
    wall_us = last - spans[0][0]
    rows = sorted(((sum(times), len(times), name) for name, times in by_name.items()), reverse=True)
    print(f"device: {wall_us / 1e3:.1f} ms from first to last kernel, idle {100 * idle_us / wall_us:.1f} %")
    for total, count, name in rows[:24]:
        print(f"{total / 1e3:9.2f} ms {count:7d} x {total / count:8.1f} us  {name[:110]}")
    found = {
        "model": asked.model,
        "case": asked.case,
        "wall_us": wall_us,
        "idle_us": idle_us,
        "kernels": [{"name": name, "us": total, "count": count} for total, count, name in rows],
    }
    Path(os.environ.get("OUT", "."), f"profile-{asked.case}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
