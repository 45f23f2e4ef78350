"""Writes `octavo/ops/triton/known.json`: every Triton kernel that models run with on H200s, on one and on two. No card is needed.

    python bench/gpu/record_kernels.py [MODEL ...]     default: the models of bench/models
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[2]))
PROMPTS = [{"prompt_token_ids": [1, 2, 3]}]
LAYERS = 2  # the first one differs from the others
RANKS = ("alone", "TP 2, rank 0", "TP 2, rank 1")
EXPERT_RANKS = ("EP 2, rank 0", "EP 2, rank 1", "EP 2 of DP 2, rank 0", "EP 2 of DP 2, rank 1")
LAYOUTS = {"alone": {}, "TP 2": {"tensor": 2}, "EP 2": {"tensor": 2, "experts": True}, "EP 2 of DP 2": {"data": 2, "experts": True}}
DRAWN = ({}, {"top_p": 0.9}, {"top_k": 50}, {"top_p": 0.9, "top_k": 50}, {"min_p": 0.1})  # how tokens are drawn, beside the largest
WORKLOADS = ((1, 32, 20), (40, (20, 300), (5, 40)), (8, 4096, 4), (64, 128, 20), (300, 512, 6), (4, 4096, 1))


def record(model: str, place: str = "alone", workloads: Sequence[tuple[Any, ...]] = WORKLOADS) -> dict[str, list[str]]:
    """Specialisation data -> the entry of the list, of all kernels that a start and some workloads run at one place of a layout."""
    from bench.gpu.without_card import stand_in
    from octavo.parallel.meeting import Layout

    found: dict[str, list[str]] = {}

    def note(module: str, name: str, data: str) -> None:
        data = lasting(data)
        found.setdefault(f"{module}.{name} {data}", [module, name, data])

    layout, _, rank = place.partition(", rank ")
    stand_in(note, Layout(**LAYOUTS[layout]), int(rank or 0))
    from octavo import LLM, SamplingParams
    from octavo.bench.offline import run_once
    from octavo.bench.workloads import Workload, draw

    llm = LLM(
        model, load_format="dummy", skip_tokenizer_init=True, hf_overrides={"num_hidden_layers": LAYERS}, kv_cache_memory_bytes=1 << 30
    )
    at_start = list(found)
    for size in workloads:
        run_once(llm, draw(Workload(*size), llm.info["vocab_size"]))
    for fields in DRAWN:
        llm.generate(PROMPTS, SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True, detokenize=False, **fields), use_tqdm=False)
    later = [found[key] for key in found if key not in at_start]
    more = ", ".join(name for _, name, _ in later)
    print(f"{model}, {place}: {len(at_start)} kernels at the start, then {len(later)}: {more}", file=sys.stderr)
    return found


def places(model: str) -> Sequence[str]:
    """Where a model is recorded."""
    return (*RANKS, *EXPERT_RANKS) if "num_experts" in (Path(model) / "config.json").read_text() else RANKS


def lasting(data: str) -> str:
    """Triton's specialisation data without what belongs to one machine, or says nothing new."""
    about = json.loads(data)
    del about["name"], about["key"], about["options"]["extern_libs"]
    return json.dumps(about)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(record(*sys.argv[2:])))
        return
    models = sys.argv[1:] or sorted(str(path) for path in (HERE.parents[1] / "models").iterdir())
    begin_s = time.monotonic()
    found: dict[str, list[str]] = {}
    commands = [[sys.executable, str(HERE), "--one", model, place] for model in models for place in places(model)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # each in a process that has the stand-in for its own
        for said in threads.map(lambda command: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, commands):
            found |= json.loads(said)
    from octavo.ops.triton.known import KNOWN

    KNOWN.write_text("[\n" + ",\n".join(json.dumps(found[key]) for key in sorted(found)) + "\n]\n")
    print(f"{len(found)} kernels in {time.monotonic() - begin_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
