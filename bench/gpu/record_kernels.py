"""Records every Triton kernel that a model runs with, for `octavo/ops/triton/known.json`.

    python bench/gpu/record_kernels.py MODEL [MODEL ...]     writes known.json to $OUT, merged over the models
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[2]))


def record(model: str, into: Path) -> None:
    from triton import knobs

    found: dict[str, list[str]] = {}

    def note(*, fn, compile, **_) -> None:
        found[compile["specialization_data"]] = [fn.module, fn.name, compile["specialization_data"]]

    knobs.runtime.jit_post_compile_hook = note
    from octavo import LLM
    from octavo.bench.offline import run_once, warm_up
    from octavo.bench.workloads import Workload, draw

    llm = LLM(model, load_format="dummy", skip_tokenizer_init=True)
    vocab = llm.info["vocab_size"]
    warm_up(llm, vocab)
    sizes = ((1, 32, 20), (40, (20, 300), (5, 40)), (8, 4096, 4), (64, 128, 20), (300, 512, 6))
    for workload in (Workload(*size) for size in sizes):
        run_once(llm, draw(workload, vocab))
    into.write_text(json.dumps(list(found.values())))


def main() -> None:
    if sys.argv[1] == "--one":
        record(sys.argv[2], Path(sys.argv[3]))
        return
    out = Path(os.environ.get("OUT", "."))
    merged: dict[str, list[str]] = {}
    for number, model in enumerate(sys.argv[1:]):
        part = out / f"part{number}.json"
        subprocess.run([sys.executable, str(HERE), "--one", model, str(part)], check=True)
        merged |= {entry[2]: entry for entry in json.loads(part.read_text())}
        part.unlink()
    (out / "known.json").write_text("[\n" + ",\n".join(json.dumps(entry) for entry in merged.values()) + "\n]\n")
    print(len(merged), "kernels")


if __name__ == "__main__":
    main()
