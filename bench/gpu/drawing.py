"""Drawing tokens from truncated probabilities, by sorting (octavo/ops/draw.py) and by searching (octavo/ops/triton/draw.py).

    python -m bench.gpu.drawing       on a GPU: a table, and $OUT/drawing.json

Times are of graphs, memory is what a call takes at most beside its logits. Tokens must be the same but for borders that rounding decides.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import torch

from bench.gpu.timing import graph_time
from octavo.ops.draw import Settings
from octavo.ops.draw import draw_rows as by_sorting
from octavo.ops.triton import draw as searching

VOCAB = 151_936
WAYS = {"all": (None, None), "top_p 0.9": (None, 0.9), "top_k 50, top_p 0.9": (50, 0.9)}
BLOCKS = (4096, 8192)


def main() -> None:
    side = torch.cuda.Stream()
    rows = []
    for num in (1, 8, 64, 256, 1024):
        logits = torch.randn(num, VOCAB, device="cuda").mul_(2.5).to(torch.bfloat16)
        which = torch.arange(num, device="cuda")
        for name, (top_k, top_p) in WAYS.items():
            settings = Settings(
                torch.ones(num, device="cuda"),
                torch.randint(-(2**62), 2**62, (num,), device="cuda"),
                None if top_k is None else torch.full((num,), top_k, dtype=torch.int32, device="cuda"),
                None if top_p is None else torch.full((num,), top_p, device="cuda"),
                None,
            )
            given = (logits, which, which, which, settings)
            row: dict[str, object] = {"rows": num, "way": name}
            expected = by_sorting(*given)[0]
            row["sorting"] = measure(partial(by_sorting, *given), side)
            for block in BLOCKS:
                searching._BLOCK = block
                row[f"searching, {block}"] = measure(partial(searching.draw_rows, *given), side)
                row["unlike"] = int((searching.draw_rows(*given)[0] != expected).sum())
            rows.append(row)
            print(json.dumps(row), flush=True)
    (Path(os.environ.get("OUT", ".")) / "drawing.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(call, side: torch.cuda.Stream) -> dict[str, float]:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    return {"us": round(graph_time(call, side, replays=5) * 1e6, 1), "mib": round(taken / 2**20, 1)}


if __name__ == "__main__":
    main()
