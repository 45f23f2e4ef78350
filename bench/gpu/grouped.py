"""A layer of experts: every cut of its products against float32, then timed, and whole layers by the tables.

    python bench/gpu/grouped.py                 on the card: checks, times, prints tables, writes $OUT/grouped.json
    python bench/gpu/grouped.py --compile       compiles every cut for sm_90 without a card
    TRITON_INTERPRET=1 python bench/gpu/grouped.py --interpret      the checks on small shapes, without a card
    python bench/gpu/grouped.py --table FILE    the lines of a device in octavo/ops/table.py

Shapes are those of Qwen3-30B-A3B. Times are of CUDA graphs that go round the weights of several layers, so that L2 does not serve them,
with launch gaps in them. Tokens choose experts by random logits, so evenly. A floor is the bytes of the experts that are hit at 4.3 TB/s,
or the products at 764 TFLOP/s, whichever takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from bench.gpu.timing import graph_time
from octavo.config.experts import Choice
from octavo.ops.grouped_linear import grouped_linear, grouped_sum
from octavo.ops.route import Routes
from octavo.ops.table import Grouped, form, grouped_cut, grouped_rows
from octavo.ops.triton.grouped import MAX_EXPERTS, TritonGrouped, grouped, pair_sum, weighted_sum
from octavo.ops.triton.linear import TritonLinear
from octavo.ops.triton.norm import rms_norm
from octavo.ops.triton.route import route
from octavo.ops.triton.share_out import share_out

EPS = 1e-6
CHOICE = Choice(8, renormalize=True)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192)
COPIES = 4  # layers that times go round
BUDGET_S = 150.0  # after this nothing new is begun


@dataclass(frozen=True)
class Shape:
    """Experts of one layer."""

    hidden: int = 2048
    inner: int = 768
    num: int = 128
    choice: Choice = CHOICE

    def sizes(self, gate: bool) -> tuple[int, int]:
        """Out and in of an expert's weight in one of the two products."""
        return (2 * self.inner, self.hidden) if gate else (self.hidden, self.inner)


QWEN3 = Shape()
SMALL = Shape(64, 32, 6, Choice(2, renormalize=True))

PAIRS = tuple(Grouped(1, n, warps=warps) for n in (1, 2, 4, 8, 16) for warps in (4, 8))
FEW = (
    Grouped(16, 32, 128, 4, 4, True), Grouped(16, 64, 64, 4, 6, True), Grouped(16, 64, 128, 4, 3, True), Grouped(16, 64, 128, 4, 4, True),
    Grouped(16, 64, 256, 4, 2, True), Grouped(16, 64, 256, 4, 3, True), Grouped(16, 128, 64, 4, 4, True), Grouped(16, 128, 128, 8, 3, True),
    Grouped(16, 64, 128, 2, 4), Grouped(16, 64, 128, 4, 4), Grouped(16, 128, 64, 4, 4),
)  # fmt: skip
SOME = (
    Grouped(32, 64, 64, 4, 6, True), Grouped(32, 64, 128, 4, 3, True), Grouped(32, 64, 128, 4, 4, True), Grouped(32, 64, 256, 4, 2, True),
    Grouped(32, 128, 64, 4, 4, True), Grouped(32, 128, 128, 8, 3, True), Grouped(32, 64, 128, 4, 3),
)  # fmt: skip
MORE = (
    Grouped(64, 64, 64, 4, 4), Grouped(64, 64, 128, 4, 3), Grouped(64, 64, 128, 4, 3, True), Grouped(64, 128, 64, 4, 3),
    Grouped(64, 128, 64, 8, 4), Grouped(64, 128, 64, 8, 4, True), Grouped(64, 128, 128, 8, 2),
)  # fmt: skip
MANY = (
    Grouped(128, 64, 64, 4, 3), Grouped(128, 64, 64, 8, 4), Grouped(128, 128, 64, 8, 3), Grouped(128, 128, 64, 8, 4),
    Grouped(128, 128, 128, 8, 2), Grouped(128, 256, 64, 8, 3),
)  # fmt: skip
BY_ROWS = {1: PAIRS, 16: FEW, 32: SOME, 64: MORE, 128: MANY}


def rows_tried(num_tokens: int) -> tuple[int, ...]:
    """Rows of a tile worth trying."""
    return next(rows for most, rows in ((4, (1, 16)), (8, (1, 16)), (48, (16,)), (128, (16, 32)), (256, (16, 32, 64)),
                                        (512, (32, 64)), (1024, (32, 64, 128)), (1 << 20, (64, 128))) if num_tokens <= most)  # fmt: skip


def cuts(shape: Shape, block_m: int, gate: bool) -> list[Grouped]:
    """Within shared memory and registers."""
    halves = 2 if gate else 1
    found = []
    for cut in BY_ROWS[block_m]:
        k = shape.sizes(gate)[1]
        if block_m == 1:
            values = halves * cut.block_n * 2 ** (k - 1).bit_length() / (32 * cut.warps)
            if 4 <= values <= (160 if gate else 48):  # the second product keeps sums of that many values
                found.append(cut)
            continue
        shared = 2 * cut.stages * cut.block_k * (cut.block_m + halves * cut.block_n)
        accumulators = halves * cut.block_m * cut.block_n / (32 * cut.warps)
        if shared < 220_000 and accumulators <= 128 and cut.block_k <= k:
            found.append(cut)
    return found


@dataclass
class Inputs:
    x: torch.Tensor  # [T, hidden]
    inside: torch.Tensor  # [T * per_token, inner]
    residual: torch.Tensor  # [T, hidden]
    routes: Routes
    first: list[torch.Tensor]  # [experts, 2 * inner, hidden] each
    second: list[torch.Tensor]  # [experts, hidden, inner] each


def weights_of(shape: Shape, copies: int, device: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    def draw(n: int, k: int) -> torch.Tensor:
        return torch.randn(shape.num, n, k, device=device, dtype=dtype) * k**-0.5

    return [draw(*shape.sizes(True)) for _ in range(copies)], [draw(*shape.sizes(False)) for _ in range(copies)]


def draw(shape: Shape, num_tokens: int, weights: tuple[list[torch.Tensor], list[torch.Tensor]]) -> Inputs:
    device, dtype = weights[0][0].device, weights[0][0].dtype
    x, residual = (torch.randn(num_tokens, shape.hidden, device=device).to(dtype) for _ in range(2))
    inside = torch.randn(num_tokens * shape.choice.per_token, shape.inner, device=device).to(dtype)
    chosen, factors = route(torch.randn(num_tokens, shape.num, device=device).to(dtype), None, shape.choice)
    return Inputs(x, inside, residual, Routes(chosen, factors, shape.num), *weights)


def shared(i: Inputs, block_m: int, counters: torch.Tensor, dependent: bool) -> Routes:
    return i.routes if block_m == 1 else replace(i.routes, work=share_out(i.routes, block_m, counters, dependent))


def run(i: Inputs, routes: Routes, gate: bool, cut: Grouped, copy: int, dependent: bool, out: torch.Tensor | None = None) -> torch.Tensor:
    """One product; the second one with its sum only where that is in one kernel."""
    if gate:
        return grouped(i.x, i.first[copy], None, routes, "silu", cut, dependent)
    if cut.block_m == 1:
        return pair_sum(i.inside, i.second[copy], None, routes, i.residual.clone() if out is None else out, cut, dependent)
    return grouped(i.inside, i.second[copy], None, routes, None, cut, dependent)


def reference(i: Inputs, gate: bool) -> torch.Tensor:
    """In float32, expert by expert, with the first weights."""
    weight = (i.first if gate else i.second)[0]
    wide = replace(i.routes)
    if gate:
        rows = [grouped_part(i.x, weight, wide, e, "silu") for e in range(wide.num_experts)]
    else:
        rows = [grouped_part(i.inside, weight, wide, e, None) for e in range(wide.num_experts)]
    out = torch.zeros(wide.num_pairs, rows[0][1].shape[1], device=weight.device)
    for pairs, y in rows:
        out[pairs] = y
    return out


def grouped_part(x: torch.Tensor, weight: torch.Tensor, routes: Routes, expert: int, gate: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = (routes.chosen.flatten() == expert).nonzero()[:, 0]
    rows = x[pairs // routes.chosen.shape[1] if gate else pairs].float()
    y = rows @ weight[expert].float().T
    if gate:
        first, up = y.chunk(2, dim=-1)
        y = torch.nn.functional.silu(first) * up
    return pairs, y


def summed(rows: torch.Tensor, i: Inputs) -> torch.Tensor:
    return i.residual.float() + (rows.unflatten(0, i.routes.chosen.shape) * i.routes.weights.unsqueeze(-1)).sum(1)


def error(y: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((y.float() - wanted).norm() / wanted.norm()).item()


def checked(i: Inputs, routes: Routes, gate: bool, cut: Grouped, wanted: torch.Tensor, dependent: bool) -> float:
    """The relative error of a cut; memory that it takes for its result held NaN before."""
    del_me = torch.full(tuple(wanted.shape), float("nan"), dtype=i.x.dtype, device=i.x.device)
    del del_me
    y = run(i, routes, gate, cut, 0, dependent)
    return error(y, summed(wanted, i) if not gate and cut.block_m == 1 else wanted)


def call_us(launch: Callable[[int], object], side: torch.cuda.Stream, calls: int = 8) -> float:
    """Microseconds a call, over a graph that goes round the copies."""

    def body() -> None:
        for call in range(calls):
            launch(call % COPIES)

    return graph_time(body, side) / calls * 1e6


def compile_small(job: tuple[Shape, bool, Grouped, bool]) -> str:
    """In a process of its own: fill Triton's cache by running a cut on two experts. Gives the error's text, or nothing."""
    shape, gate, cut, dependent = job
    try:
        small = replace(shape, num=2, choice=shape.choice)
        n, k = shape.sizes(gate)
        weight = torch.zeros(2, n, k, dtype=torch.bfloat16, device="cuda")
        tokens = torch.arange(2 * small.choice.per_token, device="cuda").view(2, -1)
        routes = Routes((tokens % 2).int(), torch.ones(tokens.shape, device="cuda"), 2)
        x = torch.zeros(2 if gate else routes.num_pairs, k, dtype=torch.bfloat16, device="cuda")
        i = Inputs(x, x, torch.zeros(2, shape.hidden, dtype=torch.bfloat16, device="cuda"), routes, [weight], [weight])
        run(i, shared(i, cut.block_m, torch.zeros(MAX_EXPERTS, dtype=torch.int32, device="cuda"), dependent), gate, cut, 0, dependent)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def compiled(pool: ProcessPoolExecutor, jobs: dict[tuple, tuple]) -> dict[tuple, str]:
    """Run the jobs; gives what failed. Should a process die, the rest is compiled where it is used."""
    try:
        return {key: text for key, text in zip(jobs, pool.map(compile_small, jobs.values(), chunksize=2)) if text}
    except BrokenExecutor as error:
        print("compiling processes:", error)
        return {}


def floor_us(shape: Shape, gate: bool, routes: Routes) -> float:
    n, k = shape.sizes(gate)
    hit = routes.chosen.unique().numel()
    return max(hit * n * k * 2 / 4.3e12, 2 * routes.num_pairs * n * k / 764e12) * 1e6


def on_card(out: Path) -> None:
    begun = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = False
    dependent = torch.cuda.get_device_capability() >= (9, 0)
    result: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "products": [], "layers": [], "parts": []}
    shape = QWEN3
    jobs = {(gate, cut): (shape, gate, cut, dependent) for rows in BY_ROWS for gate in (True, False) for cut in cuts(shape, rows, gate)}
    with ProcessPoolExecutor(max(1, min(14, (os.cpu_count() or 2) - 1)), mp_context=get_context("spawn")) as pool:
        failed = compiled(pool, jobs)
    for key, text in failed.items():
        print("does not compile or run:", *key, text)
    print(f"{len(jobs)} kernels compiled, {len(failed)} failed, {time.perf_counter() - begun:.1f} s", flush=True)
    side, counters = torch.cuda.Stream(), torch.zeros(MAX_EXPERTS, dtype=torch.int32, device="cuda")
    weights = weights_of(shape, COPIES, "cuda", torch.bfloat16)
    best: dict[tuple[int, bool, int], tuple[float, Grouped]] = {}  # by tokens, gate, rows
    for num_tokens in TOKENS:
        if time.perf_counter() - begun > BUDGET_S:
            print("no time left for", num_tokens)
            continue
        i = draw(shape, num_tokens, weights)
        for gate in (True, False):
            time_product(result, best, shape, i, gate, counters, side, dependent, failed)
        try:
            result["parts"].append(time_parts(shape, i, counters, side, dependent))
            result["layers"].append(time_layer(shape, i, best, side, dependent))
        except Exception as error_:
            print("FAILED layer", num_tokens, type(error_).__name__, str(error_)[:300], flush=True)
        out.write_text(json.dumps(result, indent=1))
    show(result)
    print(f"{time.perf_counter() - begun:.1f} s")


def time_product(
    result: dict, best: dict, shape: Shape, i: Inputs, gate: bool, counters: torch.Tensor, side: torch.cuda.Stream, dependent: bool,
    failed: dict,
) -> None:  # fmt: skip
    num_tokens = i.x.shape[0]
    wanted = reference(i, gate)
    for rows in rows_tried(num_tokens):
        routes = shared(i, rows, counters, dependent)
        entry: dict = {"tokens": num_tokens, "gate": gate, "block_m": rows, "floor_us": floor_us(shape, gate, i.routes), "cuts": []}
        result["products"].append(entry)
        scratch = i.residual.clone()
        for cut in cuts(shape, rows, gate):
            tried: dict = {"cut": asdict(cut)}
            entry["cuts"].append(tried)
            if text := failed.get((gate, cut)):
                tried["failed"] = text
                continue
            try:
                tried["error"] = checked(i, routes, gate, cut, wanted, dependent)
                if not tried["error"] < 1e-2:
                    tried["failed"] = "wrong"
                    print("WRONG", num_tokens, gate, cut, tried["error"], flush=True)
                    continue
                tried["us"] = call_us(partial(run, i, routes, gate, cut, dependent=dependent, out=scratch), side)
            except Exception as error_:
                tried["failed"] = f"{type(error_).__name__}: {str(error_)[:200]}"
                print("FAILED", num_tokens, gate, cut, tried["failed"], flush=True)
        good = [tried for tried in entry["cuts"] if "us" in tried]
        if good:
            least = min(good, key=lambda tried: tried["us"])
            cut = Grouped(**least["cut"])
            plain_us = call_us(partial(run, i, routes, gate, cut, dependent=False, out=scratch), side)
            entry |= {"best": least["cut"], "best_us": least["us"], "plain_launch_us": plain_us, "error": least["error"]}
            best[num_tokens, gate, rows] = least["us"], cut


def time_parts(shape: Shape, i: Inputs, counters: torch.Tensor, side: torch.cuda.Stream, dependent: bool) -> dict:
    """Microseconds of everything else in a layer of experts."""
    num_tokens = i.x.shape[0]
    norm, router = torch.rand(shape.hidden, device="cuda") + 0.5, torch.randn(shape.num, shape.hidden, device="cuda").bfloat16()
    linear = TritonLinear.here()
    logits = linear(i.x, router)
    rows, scratch = i.inside.new_zeros(i.routes.num_pairs, shape.hidden), i.residual.clone()
    totals = torch.zeros(shape.num, dtype=torch.int64, device="cuda")
    forms: dict[str, Callable[[int], object]] = {
        "norm": lambda _: rms_norm(i.x, norm, EPS),
        "router": lambda _: linear(i.x, router),
        "route": lambda _: route(logits, None, shape.choice, totals, dependent),
        "sum": lambda _: weighted_sum(rows, i.routes, scratch, dependent),
    }
    for block_m in rows_tried(num_tokens):
        if block_m > 1:
            forms[f"share out {block_m}"] = lambda _, block_m=block_m: share_out(i.routes, block_m, counters, dependent)
    return {"tokens": num_tokens, "us": {name: call_us(call, side) for name, call in forms.items()}}


def time_layer(shape: Shape, i: Inputs, best: dict, side: torch.cuda.Stream, dependent: bool) -> dict:
    """Microseconds a layer, norm to residual: by the tables, and with the best cuts of each number of rows."""
    num_tokens = i.x.shape[0]
    norm, router = torch.rand(shape.hidden, device="cuda") + 0.5, torch.randn(shape.num, shape.hidden, device="cuda").bfloat16()
    linear, op = TritonLinear.here(), TritonGrouped.here()
    stream = i.residual.clone()

    def layer(copy: int, block_m: int = 0) -> torch.Tensor:
        x = rms_norm(stream, norm, EPS)
        routes = Routes(*route(linear(x, router), None, shape.choice, None, dependent), shape.num)
        if block_m == 0:
            routes = op.share_out(routes)
            return op.sum(op.linear(x, i.first[copy], None, routes, "silu"), i.second[copy], None, routes, stream)
        cut, second = best[num_tokens, True, block_m][1], best[num_tokens, False, block_m][1]
        if block_m > 1:
            routes = replace(routes, work=share_out(routes, block_m, op.counters, dependent))
        inside = grouped(x, i.first[copy], None, routes, "silu", cut, dependent)
        if block_m == 1:
            return pair_sum(inside, i.second[copy], None, routes, stream, second, dependent)
        return weighted_sum(grouped(inside, i.second[copy], None, routes, None, second, dependent), routes, stream, dependent)

    us = {"by table": call_us(layer, side)}
    for rows in rows_tried(num_tokens):
        if (num_tokens, True, rows) in best and (num_tokens, False, rows) in best:
            us[f"best of {rows}"] = call_us(lambda copy, rows=rows: layer(copy, rows), side)
    difference = layer_difference(i, layer, stream, rows_tried(num_tokens))
    floor = floor_us(shape, True, i.routes) + floor_us(shape, False, i.routes)
    return {"tokens": num_tokens, "floor_us": floor, "us": us, "difference": difference}


def layer_difference(i: Inputs, layer: Callable[..., torch.Tensor], stream: torch.Tensor, rows: tuple[int, ...]) -> float:
    """How far the ways of a layer are from each other, relative, at the worst."""
    found = []
    for block_m in (0, *rows):
        stream.copy_(i.residual)
        found.append(layer(0, block_m).float().clone())
    return max(error(other, found[0]) for other in found[1:])


def show(result: dict) -> None:
    print(f"\n{'tokens':>6} {'product':8}{'rows':>5}{'floor':>8}{'best':>8}{'no PDL':>8}  error  cut")
    for e in result["products"]:
        if "best" in e:
            cut = " ".join(f"{key[:7]}={value}" for key, value in e["best"].items())
            name = "gate_up" if e["gate"] else "down"
            print(f"{e['tokens']:>6} {name:8}{e['block_m']:>5}{e['floor_us']:>8.1f}{e['best_us']:>8.1f}{e['plain_launch_us']:>8.1f}"
                  f"  {e['error']:.4f}  {cut}")  # fmt: skip
    print("\nus of the other parts")
    for e in result["parts"]:
        print(f"{e['tokens']:>6}  " + "  ".join(f"{name}: {us:.1f}" for name, us in e["us"].items()))
    print("\nus a layer, norm to residual")
    for e in result["layers"]:
        times = "  ".join(f"{name}: {us:.1f}" for name, us in e["us"].items())
        print(f"{e['tokens']:>6}  floor {e['floor_us']:.1f}: {times}  (differ {e['difference']:.4f})")


def table(path: Path) -> None:
    """Rows by the quickest layer; for each number of rows the cut that is best in the sum over the tokens it was tried with."""
    result = json.loads(path.read_text())
    rows: list[tuple[float, int]] = []
    for e in result["layers"]:
        ways = {int(name.split()[-1]): us for name, us in e["us"].items() if name.startswith("best of")}
        least = min(ways, key=lambda block_m: ways[block_m])
        pairs = e["tokens"] * QWEN3.choice.per_token / QWEN3.num
        print(f"# {e['tokens']} tokens: {least} rows")
        if least > 1:
            rows.append((pairs, max(least, rows[-1][1] if rows else 1)))
    print(f'    TUNED_ROWS "{result["device"]}": {tuple(rows)}')
    print(f'    TUNED_GROUPED "{result["device"]}": {{')
    for gate in (True, False):
        for block_m in BY_ROWS:
            total: dict[Grouped, list[float]] = {}
            for e in result["products"]:
                if e["gate"] == gate and e["block_m"] == block_m and "best_us" in e:
                    for tried in e["cuts"]:
                        total.setdefault(Grouped(**tried["cut"]), []).append(tried.get("us", 1e9) / e["best_us"])
            if total:
                cut = min(total, key=lambda cut: sum(total[cut]))
                given = [f"{f.name}={getattr(cut, f.name)}" for f in fields(cut) if getattr(cut, f.name) != f.default]
                n, k = QWEN3.sizes(gate)
                print(f'        ("{form(False, gate, False)}", {block_m}, {n}, {k}): Grouped({", ".join(given)}),')
    print("    },")


def interpret() -> None:
    from tests.interpreter import interpret as prepare

    prepare()
    weights = weights_of(SMALL, 1, "cpu", torch.float16)
    i, counters = draw(SMALL, 5, weights), torch.zeros(MAX_EXPERTS, dtype=torch.int32)
    for gate in (True, False):
        wanted = reference(i, gate)
        for cut in (Grouped(1, 8), Grouped(16, 16, 32), Grouped(16, 32, 16, swap=True)):
            found = checked(i, shared(i, cut.block_m, counters, False), gate, cut, wanted, False)
            print("gate_up" if gate else "down", cut, f"{found:.5f}")
            assert found < 4e-3
    op = TritonGrouped(torch.device("cpu"), "none", False)
    routes = op.share_out(i.routes)
    found = op.sum(op.linear(i.x, i.first[0], None, routes, "silu"), i.second[0], None, routes, i.residual.clone())
    wanted = grouped_sum(grouped_linear(i.x, i.first[0], None, i.routes, "silu"), i.second[0], None, i.routes, i.residual)
    print("layer", f"{error(found, wanted.float()):.5f}", grouped_rows("none", 5, 2, 6), grouped_cut("none", "linear", 16, 64, 32))
    assert error(found, wanted.float()) < 4e-3


def compile_all() -> None:
    """For sm_90, with the sizes that matter of what the compiler made."""
    for rows in BY_ROWS:
        for gate in (True, False):
            for cut in cuts(QWEN3, rows, gate):
                try:
                    kernel = compile_for_sm_90(QWEN3, gate, cut)
                except Exception as error_:
                    print("FAILED", gate, cut, str(error_.__cause__ or error_)[-300:], flush=True)
                    continue
                print("gate_up" if gate else "down", cut, kernel.metadata.shared, *usage(kernel), flush=True)
    for name, kernel in others_for_sm_90(QWEN3):
        print(name, kernel.metadata.shared, *usage(kernel), flush=True)


def usage(kernel: Any) -> list[str]:
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        return re.findall(r"REG:\d+ STACK:\d+", subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True).stdout)


TYPES = {
    "x": "*bf16", "weight": "*bf16", "y": "*bf16", "rows": "*bf16", "residual": "*bf16", "logits": "*bf16", "weights": "*fp32",
    "chosen": "*i32", "records": "*i32", "order": "*i32", "cursors": "*i32", "counters": "*i32", "scale": "fp32",
}  # fmt: skip


def compile_one(kernel: Any, values: dict, warps: int, stages: int, unaligned: set[str], pdl: bool = True) -> Any:
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    values = values | {name: None for name in names if name in ("bias", "correction", "totals")}
    signature = {name: "constexpr" if name in values else TYPES.get(name, "i32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in {*values, *unaligned}}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in values.items()}, aligned)
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages, "launch_pdl": pdl})


def compile_for_sm_90(shape: Shape, gate: bool, cut: Grouped) -> Any:
    from octavo.ops.triton import grouped as module

    k = shape.sizes(gate)[1]
    per_token, wide = shape.choice.per_token, 2 ** (k - 1).bit_length()
    if cut.block_m == 1:
        common = {"K": k, "BLOCK_N": cut.block_n, "BLOCK_K": wide, "BIAS": False, "PDL": True}
        if gate:
            return compile_one(module._pairs, common | {"PER_ROW": per_token, "GATE": 1}, cut.warps, 3, set())
        return compile_one(module._pair_sum, common | {"PER_TOKEN": per_token, "ADD": True}, cut.warps, 3, set())
    values = {"K": k, "PER_ROW": per_token if gate else 1, "BLOCK_M": cut.block_m, "BLOCK_N": cut.block_n, "BLOCK_K": cut.block_k,
              "GATE": int(gate), "BIAS": False, "SWAP": cut.swap, "PDL": True, "PRECISION": "tf32"}  # fmt: skip
    return compile_one(module._tiles, values, cut.warps, cut.stages, set())


def others_for_sm_90(shape: Shape) -> list[tuple[str, Any]]:
    from octavo.ops.triton import grouped as module
    from octavo.ops.triton import route as routing
    from octavo.ops.triton import share_out as sharing

    per_token, found = shape.choice.per_token, []
    for num_tokens in (1, 8192):
        values = routing.constants(shape.choice, shape.num, num_tokens, False, False, True)
        found.append((f"route {num_tokens}", compile_one(routing._route, values, 1 if values["R"] == 1 else 4, 3, {"scale", "num_tokens"})))
    for pairs in (64, 512, 4096):
        values = {"PAIRS": pairs, "E": shape.num, "BLOCK_M": 16, "TILES": 64, "PDL": True}
        loose = {"num_pairs", "num_tiles", "order", "cursors"}
        found.append((f"share out {pairs}", compile_one(sharing._all_at_once, values, 4 if pairs <= 512 else 8, 3, loose)))
    values = {"CHUNK": sharing.CHUNK, "E": shape.num, "BLOCK_M": 128, "TILES": 64}
    found.append(("count", compile_one(sharing._count, values, 4, 3, {"num_pairs", "num_tiles", "cursors"}, False)))
    found.append(("place", compile_one(sharing._place, {"CHUNK": sharing.CHUNK}, 4, 3, {"num_pairs", "order", "cursors"}, False)))
    values = {"PER_TOKEN": per_token, "BLOCK": 1024, "ADD": True, "PDL": True}
    return [*found, ("sum", compile_one(module._sum, values, 4, 3, set()))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--table", type=Path, help="a JSON file of this script; prints its lines of the table")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
    elif asked.compile:
        compile_all()
    elif asked.interpret:
        interpret()
    else:
        on_card(Path(os.environ.get("OUT", ".")) / "grouped.json")
