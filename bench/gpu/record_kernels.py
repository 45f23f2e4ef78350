"""Writes `octavo/ops/triton/known.json`: every Triton kernel that models run with on an H200. No card is needed.

    python bench/gpu/record_kernels.py [MODEL ...]     default: the models of bench/models
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[2]))
LAYERS = 2  # the first one differs from the others
WORKLOADS = ((1, 32, 20), (40, (20, 300), (5, 40)), (8, 4096, 4), (64, 128, 20), (300, 512, 6), (4, 4096, 1))


def record(model: str, workloads: Sequence[tuple[Any, ...]] = WORKLOADS) -> dict[str, list[str]]:
    """Specialisation data -> the entry of the list, of all kernels that a start and some workloads run."""
    from bench.gpu.without_card import stand_in

    found: dict[str, list[str]] = {}

    def note(module: str, name: str, data: str) -> None:
        data = lasting(data)
        found.setdefault(f"{module}.{name} {data}", [module, name, data])

    stand_in(note)
    from octavo import LLM
    from octavo.bench.offline import run_once
    from octavo.bench.workloads import Workload, draw

    llm = LLM(
        model, load_format="dummy", skip_tokenizer_init=True, hf_overrides={"num_hidden_layers": LAYERS}, kv_cache_memory_bytes=1 << 30
    )
    at_start = list(found)
    for size in workloads:
        run_once(llm, draw(Workload(*size), llm.info["vocab_size"]))
    later = [found[key] for key in found if key not in at_start]
    print(f"{model}: {len(at_start)} kernels at the start, then {len(later)}: {', '.join(name for _, name, _ in later)}", file=sys.stderr)
    return found


def lasting(data: str) -> str:
    """Triton's specialisation data without what belongs to one machine, or says nothing new."""
    about = json.loads(data)
    del about["name"], about["key"], about["options"]["extern_libs"]
    return json.dumps(about)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(record(sys.argv[2])))
        return
    models = sys.argv[1:] or sorted(str(path) for path in (HERE.parents[1] / "models").iterdir())
    begin_s = time.monotonic()
    found: dict[str, list[str]] = {}
    for model in models:  # each in a process that has the stand-in for its own
        done = subprocess.run([sys.executable, str(HERE), "--one", model], check=True, stdout=subprocess.PIPE, text=True)
        found |= json.loads(done.stdout)
    from octavo.ops.triton.known import KNOWN

    KNOWN.write_text("[\n" + ",\n".join(json.dumps(found[key]) for key in sorted(found)) + "\n]\n")
    print(f"{len(found)} kernels in {time.monotonic() - begin_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
