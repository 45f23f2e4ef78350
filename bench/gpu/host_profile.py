"""What the host does while a workload runs: its functions by own time, a step.

    python bench/gpu/host_profile.py MODEL CASE TOKENS
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from dataclasses import replace
from itertools import pairwise

import torch

from octavo import LLM
from octavo.bench.offline import run_once, warm_up
from octavo.bench.workloads import CASES, draw
from octavo.capture.decode import DecodeGraphs
from octavo.sampling.sampled import Fetching

model, case, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
llm = LLM(model, load_format="dummy", skip_tokenizer_init=True)
vocab = llm.info["vocab_size"]
warm_up(llm, vocab)
drawn = draw(CASES[case], vocab, 1)
drawn = replace(drawn, output_lens=tuple(min(length, tokens) for length in drawn.output_lens))
steps = llm.get_metrics()["num_steps"]
waited = 0.0
result = Fetching.result


def timed_result(self):
    global waited
    begin_s = time.perf_counter()
    if self.arrived is not None:
        self.arrived.synchronize()
    waited += time.perf_counter() - begin_s
    return result(self)


Fetching.result = timed_result
spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
graph_step = DecodeGraphs.step


def timed_step(self, plan, recipe):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    sampled = graph_step(self, plan, recipe)
    end.record()
    if sampled is not None:
        spans.append((begin, end))
    return sampled


DecodeGraphs.step = timed_step
begin_s = time.perf_counter()
run_once(llm, drawn)
plain_s = time.perf_counter() - begin_s
waited_s = waited
plain_steps = llm.get_metrics()["num_steps"] - steps
llm.reset_prefix_cache()
profiler = cProfile.Profile()
profiler.enable()
run_once(llm, drawn)
profiler.disable()
torch.cuda.synchronize()
busy_ms = [begin.elapsed_time(end) for begin, end in spans]
gaps_ms = [end.elapsed_time(begin) for (_, end), (begin, _) in pairwise(spans)]
for name, values in (("graph", busy_ms), ("gap", gaps_ms)):
    ordered = sorted(values)
    mean, median = sum(values) / len(values), ordered[len(ordered) // 2]
    print(f"{name}: {len(values)} x mean {mean:.3f} ms, median {median:.3f}, max {ordered[-1]:.3f}")
print("graph ms at every 20th step:", [round(value, 2) for value in busy_ms[::20]])
DecodeGraphs.step = graph_step
print(f"host waited {waited_s:.3f} s for the device")
print(f"{plain_steps} steps in {plain_s:.3f} s: {1000 * plain_s / plain_steps:.2f} ms a step")
pstats.Stats(profiler).sort_stats("tottime").print_stats(24)
