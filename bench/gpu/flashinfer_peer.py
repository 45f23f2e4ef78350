"""FlashInfer's attention beside ours, at the shapes that matter: results, time on the device, and what its plan costs the host.

    python -m bench.gpu.flashinfer_peer       on a GPU with flashinfer-python: a table, and $OUT/flashinfer.json

Both read the same paged memory in a graph over rotating layers, ours with the scheduling kernels; FlashInfer's lists of work were made
before. Its kernels are compiled in the first call.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu.attention import Case, decode, inputs, layers_for, uneven
from bench.gpu.timing import graph_time
from octavo.attention.backend import AttentionBackend
from octavo.attention.flashinfer import FlashInferAttention
from octavo.attention.triton import TritonAttention

CASES = [
    uneven("qwen", 256),
    decode("llama", 256, 256),
    decode("llama", 64, 256),
    decode("llama", 1, 2048),
    Case("llama 4 x 4096 fresh", "llama", ((4096, 4096),) * 4),
    Case("llama 32 x 512 fresh", "llama", ((512, 512),) * 32),
    Case("llama 2048 after 6144", "llama", ((2048, 8192),)),
    Case("llama 200 decodes + 1024", "llama", ((1, 600),) * 200 + ((1024, 1024),)),
]
ARENA_VALUES = 1 << 30


def main() -> None:
    arena = torch.randn(ARENA_VALUES, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream()
    ours, theirs = TritonAttention(), FlashInferAttention()
    rows = []
    for case in CASES:
        row: dict[str, Any] = {"case": case.name, "floor_us": round(case.floor_s * 1e6, 1)}
        try:
            given = inputs(case, arena, layers_for(case))
            results = {}
            for name, backend in (("triton", ours), ("flashinfer", theirs)):
                results[name], row[name] = measure(backend, case, given, side)
            row["error"] = float((results["triton"] - results["flashinfer"]).norm() / results["triton"].norm())
        except Exception as problem:
            row["failed"] = repr(problem)[:300]
        rows.append(row)
        print(json.dumps(row), flush=True)
    (Path(os.environ.get("OUT", ".")) / "flashinfer.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(backend: AttentionBackend, case: Case, given: Any, side: torch.cuda.Stream) -> tuple[torch.Tensor, dict[str, float]]:
    """The first layer's result; microseconds a layer on the device, and of the host until the first layer of a step is launched."""
    plan = backend.plan(given.batch, 0, given.table, given.kvs[0].shape[2])
    found = backend.run(plan, given.q, given.kvs[0], case.shape).float()
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    plan = backend.plan(given.batch, 0, given.table, given.kvs[0].shape[2])
    backend.run(plan, given.q, given.kvs[0], case.shape)
    host_s = time.perf_counter() - begin_s

    def layers() -> None:
        step = plan if backend.supports.reads_lengths else backend.plan(given.batch, 0, given.table, given.kvs[0].shape[2])
        for kv in given.kvs:
            backend.run(step, given.q, kv, case.shape)

    return found, {"us": round(graph_time(layers, side) / len(given.kvs) * 1e6, 1), "host_us": round(host_s * 1e6)}


if __name__ == "__main__":
    main()
