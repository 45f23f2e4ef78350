"""Do all kernels of a model compile for cards before Hopper, and fit in their shared memory? No card is needed.

    python bench/gpu/older_cards.py [MODEL ...]      writes older_cards.json to $OUT; exit code 1 if one does not

The same steps as in record_kernels.py, one sequence and many, decided as on an A100, an A10G and an L4: their compute capability,
multiprocessors and shared memory, without dependent launch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

MODELS = ("bench/models/llama3-8b", "bench/models/qwen3-0.6b")
CARDS = {  # name, compute capability, multiprocessors, shared memory of one program, memory
    "a100": ("NVIDIA A100-SXM4-80GB", 80, 108, 166_912, 85_000_000_000),
    "a10g": ("NVIDIA A10G", 86, 80, 101_376, 24_000_000_000),
    "l4": ("NVIDIA L4", 89, 58, 101_376, 24_000_000_000),
}
FLAGS = ({}, {"kv_cache_dtype": "int8"})


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(check(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
        return
    rows = []
    for model in sys.argv[1:] or MODELS:
        for card in CARDS:
            for flags in FLAGS:
                words = [sys.executable, __file__, "--one", model, card, json.dumps(flags)]
                rows.append(json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout))
                print(json.dumps(rows[-1]), flush=True)
    (Path(os.environ.get("OUT", ".")) / "older_cards.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(row["failed"] for row in rows) else 0)


def check(model: str, name: str, flags: dict) -> dict:
    """Every kernel that the steps launch, compiled for the card."""
    from bench.gpu.record_kernels import lasting
    from bench.gpu.without_card import Card, stand_in
    from octavo.ops.triton.known import Kernel
    from octavo.ops.triton.precompile import compile_one

    card, kernels = Card(*CARDS[name]), dict[str, Kernel]()

    def note(module: str, function: str, data: str) -> None:
        data = lasting(data)
        kernels.setdefault(f"{module}.{function} {data}", Kernel(module, function, data))

    stand_in(note, card=card)
    from octavo import LLM
    from octavo.bench.offline import run_once
    from octavo.bench.workloads import Workload, draw

    common = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 4096, "kv_cache_memory_bytes": 1 << 30}
    llm = LLM(model, hf_overrides={"num_hidden_layers": 2}, **common, **flags)
    for workload in ((1, 32, 4), (40, (20, 300), (2, 10)), (4, 2048, 2)):
        run_once(llm, draw(Workload(*workload), llm.info["vocab_size"]))
    failed, most = [], 0
    for kernel in kernels.values():
        try:
            shared = compile_one(kernel, card.sm).metadata.shared
        except Exception as problem:
            failed.append(f"{kernel.name}: {str(problem)[-300:]}")
            continue
        most = max(most, shared)
        if shared > card.shared_bytes:
            failed.append(f"{kernel.name}: {shared:,} bytes of shared memory")
    return {"model": model, "card": name, "flags": flags, "kernels": len(kernels), "most_shared_bytes": most, "failed": failed}


if __name__ == "__main__":
    main()
