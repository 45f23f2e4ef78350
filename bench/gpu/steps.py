"""Every step of a workload: what it held, how long it took, and how much of that the device worked.

    python bench/gpu/steps.py MODEL CASE [CASE ...] [--flags JSON] [--profile N]

Prints runs of like steps, how long the device waits between them, and how many were launched only when the step before had ended, which
is when it can wait at all; writes steps-MODEL-CASE.json to $OUT. Cases run one after another in one engine, each with a cold prefix cache.
With `--profile N`, the first N steps of the first case run under torch's profiler, and the kernels and the host's operations are listed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from octavo import LLM
from octavo.bench.offline import run_once, warm_up
from octavo.bench.workloads import CASES, draw
from octavo.worker.runner import Runner

COLUMNS = ("tokens", "sequences", "prefill tokens", "decode context", "wall ms", "device ms", "gap ms", "submit ms", "late")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--flags", default="{}")
    parser.add_argument("--profile", type=int, default=0)
    asked = parser.parse_args()
    llm = LLM(asked.model, load_format="dummy", skip_tokenizer_init=True, **json.loads(asked.flags))
    vocab = llm.info["vocab_size"]
    warm_up(llm, vocab)
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event, float, bool]] = []
    plain_step = Runner.step
    recorder = None

    def timed_step(self, plan):
        nonlocal recorder
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        host_s = time.perf_counter()
        begin.record()
        fetching = plain_step(self, plan)
        late = bool(spans) and spans[-1][1].query()  # all is launched now: was the device idle before?
        end.record()
        spans.append((begin, end, time.perf_counter() - host_s, late))
        if recorder is not None and len(spans) == asked.profile:
            torch.cuda.synchronize()
            recorder.__exit__(None, None, None)
            show(recorder)
            recorder = None
        return fetching

    Runner.step = timed_step
    for number, name in enumerate(asked.cases):
        llm.reset_prefix_cache()
        spans.clear()
        drawn = draw(CASES[name], vocab, 1)
        if number == 0 and asked.profile:
            recorder = profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU])
            recorder.__enter__()
        seconds, num_tokens = run_once(llm, drawn)
        torch.cuda.synchronize()
        log = llm.get_step_log()[-len(spans) :]
        lines = []
        last_end = None
        for timing, (begin, end, host_s, late) in zip(log, spans):
            gap_ms = last_end.elapsed_time(begin) if last_end is not None else 0.0
            last_end = end
            shape = timing.shape
            times = (timing.seconds * 1e3, begin.elapsed_time(end), gap_ms, host_s * 1e3)
            counts = (shape.num_tokens, shape.num_sequences, shape.prefill_tokens, shape.decode_context)
            lines.append([*counts, *(round(value, 3) for value in times), int(late)])
        print(f"{name}: {seconds:.3f} s, {num_tokens} tokens, {len(lines)} steps", flush=True)
        print("   steps  tokens  seqs  prefill  context |  wall ms   device    gap   submit (means), total s")
        for group in grouped(lines):
            n = len(group)
            mean = [sum(column) / n for column in zip(*group)]
            counts = f"{mean[0]:7.0f} {mean[1]:5.0f} {mean[2]:8.0f} {mean[3]:8.0f}"
            print(f"{n:8d} {counts} | {mean[4]:8.3f} {mean[5]:8.3f} {mean[6]:7.3f} {mean[7]:7.3f}  {mean[4] * n / 1e3:.3f}")
        many = waiting(lines, lambda step: step[1] >= 200 and not step[2])
        waits = {"all steps": waiting(lines), "decode steps of 200 sequences and more": many}
        for which, told in waits.items():
            print(f"{which}: {told}")
        folder = Path(os.environ.get("OUT", "."))
        found = {"seconds": seconds, "tokens": num_tokens, "waits": waits, "columns": COLUMNS, "steps": lines}
        folder.joinpath(f"steps-{Path(asked.model).name}-{name}.json").write_text(json.dumps(found))
    llm.close()


def waiting(lines, counts=lambda step: True) -> dict[str, float]:
    """Of the steps that count and follow one another: the part of the time that is between them, and how much the device can have waited
    at most, which is in late steps the gap and all that the host took to launch the step."""
    steps = [now for before, now in itertools.pairwise(lines) if counts(before) and counts(now)]
    whole = max(sum(step[5] + step[6] for step in steps), 1e-9)
    most = sum(step[6] + min(step[5], step[7]) for step in steps if step[8])
    return {
        "steps": len(steps), "late": sum(step[8] for step in steps), "between": round(sum(step[6] for step in steps) / whole, 5),
        "at most": round(most / whole, 5),
    }  # fmt: skip


def grouped(lines):
    """Every step with prompts alone; those that only decode by a quarter of an octave of sequences."""
    group: list[list[float]] = []
    kind = None
    for line in lines:
        this = None if line[2] else round(4 * math.log2(line[1]))
        if group and (this is None or this != kind):
            yield group
            group = []
        group.append(line)
        kind = this
    if group:
        yield group


def show(recorder) -> None:
    print(recorder.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=70))
    print(recorder.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=70))


if __name__ == "__main__":
    main()
