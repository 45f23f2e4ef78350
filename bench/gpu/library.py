"""Is cuBLASLt's first choice its best? Times its proposals for the products of a model, in turn with torch's own call.

    python bench/gpu/library.py [--rows 64,256,...] [--seconds 100]    prints lines of `octavo/ops/table.py`, writes $OUT/library.json

Products run in CUDA graphs over rotating weights, so that L2 does not serve them; large ones run until the card's power limit sets its
clock, as in a long prefill. A proposal is taken if it was faster by `GAIN` in the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.nn.functional as F

from octavo.ops.library import Library, open_library
from octavo.ops.table import WIDE_BUCKETS

PRODUCTS = {  # of a layer: weight, and whether the result is added to the residual
    "llama3-8b": {"qkv": (6144, 4096, False), "o": (4096, 4096, True), "gate_up": (28672, 4096, False), "down": (4096, 14336, True)},
    "qwen3-0.6b": {"qkv": (4096, 1024, False), "o": (1024, 2048, True), "gate_up": (6144, 1024, False), "down": (1024, 3072, True)},
}
ROUNDS, GAIN = 3, 0.02
TORCH = b""


def graph_of(launch: Callable[[int], None], calls: int, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        launch(0)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            for call in range(calls):
                launch(call)
        finally:
            graph.capture_end()
        graph.replay()
    return graph


def replay_s(graph: torch.cuda.CUDAGraph, side: torch.cuda.Stream) -> float:
    with torch.cuda.stream(side):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(side)
        graph.replay()
        end.record(side)
        end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(library: Library, side: torch.cuda.Stream, rows: int, n: int, k: int, add: bool, weights: list[torch.Tensor]) -> dict:
    x = torch.randn(rows, k, device="cuda").bfloat16()
    y = torch.zeros(rows, n, device="cuda", dtype=torch.bfloat16)
    wanted = F.linear(x[:64].float(), weights[0].float())
    calls = max(2, min(24, 16384 // rows))

    def launcher(way: bytes) -> Callable[[int], None]:
        def by_torch(call: int) -> None:
            weight = weights[call % len(weights)].t()
            if add:
                y.addmm_(x, weight)
            else:
                torch.mm(x, weight, out=y)

        return by_torch if way == TORCH else lambda call: library.product(x, weights[call % len(weights)], y, way, 1.0, add)

    graphs: dict[bytes, torch.cuda.CUDAGraph] = {}
    for way in (TORCH, *library.proposals(x, weights[0], y)):
        try:
            y.zero_()
            launcher(way)(0)
            error = ((y[:64].float() - wanted).norm() / wanted.norm()).item()
            if error < 1e-2:
                graphs[way] = graph_of(launcher(way), calls, side)
            else:
                print("WRONG", rows, n, k, way.hex(), error, flush=True)
        except RuntimeError as problem:
            print("FAILED", rows, n, k, way.hex(), str(problem)[:100], flush=True)
    times: dict[bytes, list[float]] = {way: [] for way in graphs}
    for _ in range(ROUNDS):
        for way, graph in graphs.items():
            times[way].append(statistics.median(replay_s(graph, side) for _ in range(3)) / calls)
    medians = {way: statistics.median(values) for way, values in times.items()}
    best = min(medians, key=medians.__getitem__)
    return {
        "rows": rows, "n": n, "k": k, "torch_us": medians[TORCH] * 1e6, "best_us": medians[best] * 1e6, "best": best.hex(),
        "tflop_per_s": 2 * rows * n * k / medians[best] / 1e12, "all_us": {way.hex()[:32]: value * 1e6 for way, value in medians.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default=",".join(map(str, WIDE_BUCKETS)))
    parser.add_argument("--seconds", type=float, default=120)
    asked = parser.parse_args()
    library, side = open_library(torch.device("cuda", 0)), torch.cuda.Stream()
    assert library is not None, "there is no cuBLASLt"
    found: list[dict] = []
    begun_s = time.perf_counter()
    for model, products in PRODUCTS.items():
        for name, (n, k, add) in products.items():
            copies = max(2, min(24, -(-(300 << 20) // (2 * n * k))))
            weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5 for _ in range(copies)]
            for rows in map(int, asked.rows.split(",")):
                if time.perf_counter() - begun_s > asked.seconds:
                    break
                entry = {"model": model, "product": name} | measure(library, side, rows, n, k, add, weights)
                found.append(entry)
                ratio = entry["torch_us"] / entry["best_us"]
                print(f"{model} {name} {rows}: {entry['torch_us']:.1f} -> {entry['best_us']:.1f} us ({ratio:.3f})", flush=True)
                Path(os.environ.get("OUT", "."), "library.json").write_text(json.dumps({"version": library.version, "products": found}))
    print(f'    ("{torch.cuda.get_device_name()}", {library.version}, "torch.bfloat16"): {{')
    for entry in found:
        if entry["best"] and entry["torch_us"] > (1 + GAIN) * entry["best_us"]:
            print(f'        ({entry["rows"]}, {entry["n"]}, {entry["k"]}): "{bytes.fromhex(entry["best"]).rstrip(bytes(1)).hex()}",')
    print("    },")


if __name__ == "__main__":
    main()
