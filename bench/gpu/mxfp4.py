"""A layer of experts in MXFP4 with the shapes of GPT-OSS-20B: every cut against float64, then timed, beside the same layer in bf16.

    OUT=/tmp/out python bench/gpu/mxfp4.py     writes mxfp4.json there
    python bench/gpu/mxfp4.py --compile        what each cut costs, without a card

Times are of CUDA graphs that go round several layers' weights, so that L2 does not serve them. Tokens choose evenly. The floor is the bytes
of the experts that are hit at 4.24 TB/s, or the products at 764 TFLOP/s.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from bench.gpu.compiled import compile_for
from bench.gpu.timing import graph_time
from octavo.config.experts import Choice
from octavo.ops.mxfp4 import Mxfp4, mxfp4_linear
from octavo.ops.route import Routes
from octavo.ops.table import Grouped
from octavo.ops.triton import grouped_mxfp4 as kernels
from octavo.ops.triton.grouped import TritonGrouped
from octavo.ops.triton.grouped_mxfp4 import packed_grouped
from octavo.ops.triton.route import route
from octavo.ops.triton.share_out import share_out

HIDDEN, INNER, NUM, PER_TOKEN, GATE = 2880, 2880, 32, 4, "clamped_swiglu"
WEIGHTS = 3 * HIDDEN * INNER  # of an expert
BANDWIDTH, FLOPS = 4.24e12, 764e12
LAYERS = 3
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
BUDGET_S = 75.0
CUTS = {  # by rows of a tile
    1: [Grouped(1, n, k, warps=w) for n, k, w in ((4, 512, 4), (2, 512, 4), (4, 1024, 4), (8, 512, 4), (8, 256, 4), (8, 1024, 8))],
    16: [Grouped(16, n, k, 4, s, True) for n, k, s in ((64, 128, 3), (64, 128, 4), (64, 64, 4), (64, 256, 2), (128, 128, 3))],
    32: [Grouped(32, n, k, 4, s, True) for n, k, s in ((64, 128, 3), (64, 64, 4), (128, 64, 3))],
    64: [
        Grouped(64, 64, 64, 4, 3), Grouped(64, 64, 64, 4, 3, True), Grouped(64, 64, 128, 4, 3, True), Grouped(64, 128, 64, 8, 3, True),
    ],
    128: [Grouped(128, n, 64, 8, 3, swap) for n in (64, 128) for swap in (False, True)],
}  # fmt: skip


def rows_tried(num_tokens: int) -> tuple[int, ...]:
    pairs = num_tokens * PER_TOKEN / NUM
    return (1, 16) if num_tokens <= 4 else (16,) if pairs <= 2 else (16, 32) if pairs <= 16 else (32, 64) if pairs <= 32 else (64, 128)


def compile_all() -> None:
    shared = {"x": "*bf16", "codes": "*u8", "scales": "*u8", "bias": "*bf16", "y": "*bf16", "N": "i32:16", "x_stride": "i32:16"}
    for cut in (cut for cuts in CUTS.values() for cut in cuts):
        for gate in (3, 0):
            fixed = dict(K=HIDDEN, PER_ROW=PER_TOKEN if gate else 1, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, GATE=gate)
            fixed |= dict(BIAS=True, PDL=True)
            if cut.block_m == 1:
                types, kernel = {**shared, "chosen": "*i32", "num_experts": "i32:16"}, kernels._packed_pairs
            else:
                types, kernel = {**shared, "records": "*i32", "order": "*i32"}, kernels._packed_tiles
                fixed |= dict(BLOCK_M=cut.block_m, SWAP=cut.swap, PRECISION="tf32", num_stages=cut.stages)
            stages = {"num_stages": fixed.pop("num_stages")} if "num_stages" in fixed else {}
            types = {name: types[name] for name in kernel.arg_names if name in types}
            print(cut, "gated" if gate else "plain", compile_for(kernel, types, fixed, num_warps=cut.warps, **stages), flush=True)


@dataclass
class Inputs:
    x: torch.Tensor  # [T, hidden]
    inside: torch.Tensor  # [pairs, inner]
    residual: torch.Tensor  # [T, hidden]
    routes: Routes
    layers: list[tuple[Mxfp4, Mxfp4]]
    biases: list[torch.Tensor]


def packed(out: int, inside: int) -> Mxfp4:
    codes = torch.randint(0, 256, (NUM, out, inside // 32, 16), dtype=torch.uint8, device="cuda")
    return Mxfp4(codes, torch.randint(119, 123, (NUM, out, inside // 32), dtype=torch.uint8, device="cuda"))


def time_products(i: Inputs, plain: TritonGrouped, side: torch.cuda.Stream, rows: int) -> Iterator[dict[str, Any]]:
    """Both products, by every cut of so many rows."""
    routes = i.routes if rows == 1 else replace(i.routes, work=share_out(i.routes, rows, plain.counters, plain.dependent))
    few = Routes(i.routes.chosen[:8], i.routes.weights[:8], NUM)
    wanted = mxfp4_linear(i.x[:8].double(), i.layers[0][0], i.biases[0].double(), few, GATE)
    for which, (x, gate) in enumerate(((i.x, GATE), (i.inside, None))):
        for cut in CUTS[rows]:
            row: dict[str, Any] = {"product": "gate_up" if gate else "down", "cut": str(cut)}

            def run(layers: Sequence[tuple[Mxfp4, Mxfp4]], x=x, gate=gate, cut=cut, which=which) -> torch.Tensor:
                made = [packed_grouped(x, one[which], i.biases[which], routes, gate, cut, plain.dependent) for one in layers]
                return made[0]

            try:
                if gate:
                    got = run(i.layers[:1])[: len(wanted)].double()
                    row["error"] = float((got - wanted).norm() / wanted.norm())
                row["us"] = 1e6 * graph_time(partial(run, i.layers), side, replays=3) / LAYERS
            except Exception:
                row["failed"] = traceback.format_exc()[-300:]
            yield row


def time_wide(i: Inputs, wide: Sequence[Sequence[torch.Tensor]], plain: TritonGrouped, side: torch.cuda.Stream) -> float:
    """Microseconds of both products in bf16."""
    routes = plain.share_out(i.routes)

    def layers() -> None:
        for first, second in wide:
            plain.sum(plain.linear(i.x, first, i.biases[0], routes, GATE), second, i.biases[1], routes, i.residual)

    return 1e6 * graph_time(layers, side, replays=3) / len(wide)


def on_card() -> None:
    begin_s, side, plain = time.perf_counter(), torch.cuda.Stream(), TritonGrouped.here()
    layers = [(packed(2 * INNER, HIDDEN), packed(HIDDEN, INNER)) for _ in range(LAYERS)]
    wide = [[weight.wide(torch.bfloat16) for weight in layer] for layer in layers[:2]]
    biases = [torch.randn(NUM, out, device="cuda").bfloat16() for out in (2 * INNER, HIDDEN)]
    found: list[dict[str, Any]] = []
    for num_tokens in TOKENS:
        if time.perf_counter() - begin_s > BUDGET_S:
            print("no time left for", num_tokens)
            break
        x, residual = (torch.randn(num_tokens, HIDDEN, device="cuda").bfloat16() for _ in range(2))
        logits = torch.randn(num_tokens, NUM, device="cuda").bfloat16()
        routes = Routes(*route(logits, None, Choice(PER_TOKEN, renormalize=True), None, plain.dependent), NUM)
        i = Inputs(x, torch.randn(routes.num_pairs, INNER, device="cuda").bfloat16(), residual, routes, layers, biases)
        hit = routes.chosen.unique().numel()
        floor_us = 1e6 * max(hit * WEIGHTS * 17 / 32 / BANDWIDTH, 2 * WEIGHTS * routes.num_pairs / FLOPS)
        found.append({"tokens": num_tokens, "floor, us": floor_us, "in bf16, us": time_wide(i, wide, plain, side)})
        found += [{"tokens": num_tokens} | row for rows in rows_tried(num_tokens) for row in time_products(i, plain, side, rows)]
    about = {"device": torch.cuda.get_device_name(), "rows": found}
    (Path(os.environ.get("OUT", ".")) / "mxfp4.json").write_text(json.dumps(about, indent=1))
    for row in found:
        print("  ".join(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}" for key, value in row.items()))
    print(f"{time.perf_counter() - begin_s:.1f} s")


if __name__ == "__main__":
    compile_all() if "--compile" in sys.argv else on_card()
