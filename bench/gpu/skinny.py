"""Products of few rows: every cut of `octavo/ops/triton/skinny.py` against float32, then timed beside cuBLAS and separate kernels.

    python bench/gpu/skinny.py              on the card: checks, times, prints tables, writes $OUT/skinny.json
    python bench/gpu/skinny.py --compile    compiles every cut for sm_90 without a card
    TRITON_INTERPRET=1 python bench/gpu/skinny.py --dry     the checks on small shapes, without a card

Times are of CUDA graphs with rotating weights, so that L2 does not serve them, and with the launch gap in them. Cuts are compared as
they would run: launched programmatically, each next to the same product with other weights. The best of each shape is then timed
without that, and whole layers (norm to down projection, attention left out) in every form. `best` in the JSON is what
`octavo/ops/table.py` holds.
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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.nn.functional as F

from bench.gpu.timing import graph_time
from octavo.ops.table import Cut, OneRow, Skinny, form
from octavo.ops.triton.gated import silu_mul
from octavo.ops.triton.linear import TritonLinear
from octavo.ops.triton.norm import add_rms_norm, rms_norm
from octavo.ops.triton.one_row import grid, one_row
from octavo.ops.triton.skinny import MAX_BLOCKS, skinny

EPS = 1e-5
ROWS = (1, 8, 16, 64)
SMS = 132
BUDGET_S = 100.0  # after this nothing new is begun


@dataclass(frozen=True)
class Case:
    """One product of a model: n weight rows of k, and what is fused around it."""

    model: str
    name: str
    n: int
    k: int
    norm: bool = False
    gate: bool = False
    add: bool = False

    @property
    def form(self) -> str:
        return form(self.norm, self.gate, self.add)


CASES = (
    Case("llama3-8b", "qkv", 6144, 4096, norm=True),
    Case("llama3-8b", "o", 4096, 4096, add=True),
    Case("llama3-8b", "gate_up", 28672, 4096, norm=True, gate=True),
    Case("llama3-8b", "down", 4096, 14336, add=True),
    Case("llama3-8b", "head", 128256, 4096),
    Case("llama3-8b", "qkv alone", 6144, 4096),
    Case("llama3-8b", "gate_up, no norm", 28672, 4096, gate=True),
    Case("qwen3-0.6b", "qkv", 4096, 1024, norm=True),
    Case("qwen3-0.6b", "o", 1024, 2048, add=True),
    Case("qwen3-0.6b", "gate_up", 6144, 1024, norm=True, gate=True),
    Case("qwen3-0.6b", "down", 1024, 3072, add=True),
    Case("qwen3-0.6b", "head", 151936, 1024),
    Case("qwen3-0.6b", "gate_up, no norm", 6144, 1024, gate=True),
)

ONE_ROW = (
    *(OneRow(block_n, warps) for block_n in (1, 2, 4, 8) for warps in (2, 4, 8)),
    *(OneRow(2, warps, per_sm) for warps, per_sm in ((8, 2), (8, 3), (4, 4), (16, 1))),
    *(OneRow(4, warps, per_sm) for warps, per_sm in ((8, 2), (16, 1))),
    OneRow(8, 16, 1),
    Skinny(1, 2, 1024, stages=1, unroll=4),
    Skinny(1, 4, 512, warps=2, stages=1, unroll=4),
    Skinny(1, 8, 1024, warps=8, stages=1, unroll=2),
)
FEW_ROWS = (
    Skinny(16, 16, 512, warps=2),
    Skinny(16, 32, 512),
    Skinny(16, 64, 128, stages=4, swap=True),
    Skinny(16, 64, 128, stages=6, swap=True),
    Skinny(16, 64, 256, swap=True),
    Skinny(16, 64, 256, stages=4, swap=True),
)
FEW_ROWS_SPLIT = (
    Skinny(16, 64, 128, split=2, stages=4, swap=True),
    Skinny(16, 64, 128, split=4, stages=4, swap=True),
    Skinny(16, 64, 256, split=4, swap=True),
    Skinny(16, 64, 128, split=8, stages=4, swap=True),
)
MORE_ROWS = (
    Skinny(64, 64, 64, stages=6),
    Skinny(64, 64, 128, stages=4),
    Skinny(64, 64, 128, stages=4, swap=True),
    Skinny(64, 128, 64, stages=4),
)
MORE_ROWS_SPLIT = (
    Skinny(64, 64, 128, split=2),
    Skinny(64, 64, 128, split=4),
    Skinny(64, 64, 128, split=4, swap=True),
)


def cuts(case: Case, num_rows: int) -> list[Cut]:
    """What may be tried for a case: whole sums where it has a norm or a gate, tiles within shared memory and registers."""
    if num_rows == 1:
        return [c for c in ONE_ROW if (_fits_registers(case, c) if isinstance(c, OneRow) else c.block_k <= case.k)]
    some, split = (FEW_ROWS, FEW_ROWS_SPLIT) if num_rows <= 16 else (MORE_ROWS, MORE_ROWS_SPLIT)
    if not case.norm and not case.gate and case.n <= 8192:
        some += split
    if case.gate:
        some += tuple(replace(c, block_n=c.block_n // 2) for c in some)
    return [c for c in dict.fromkeys(some) if c.block_k <= case.k and _shared_bytes(case, c) < 220_000]


def _fits_registers(case: Case, c: OneRow) -> bool:
    """x in float32 and the weights of two groups (one, where a program has no more)."""
    a_thread = 2 ** (case.k - 1).bit_length() / (32 * c.warps)
    groups = c.block_n * (2 if case.gate else 1) * (2 if c.per_sm else 1)
    turns = grid(c, case.n // (2 if case.gate else 1), 132)[1]
    return a_thread >= 4 and a_thread * (1 + groups / 2) <= min(180, 60_000 / (32 * c.warps)) and (turns > 1) == bool(c.per_sm)


def _shared_bytes(case: Case, c: Skinny) -> int:
    return 2 * c.stages * c.block_k * (c.block_m + c.block_n * (2 if case.gate else 1)) if c.stages > 1 else 0


@dataclass
class Inputs:
    x: torch.Tensor  # [rows, k]
    norm: torch.Tensor | None
    weights: list[torch.Tensor]  # [n, k] each
    residual: torch.Tensor | None  # [rows, n]


def draw(case: Case, num_rows: int, copies: int, device: str, dtype: torch.dtype) -> Inputs:
    x = (torch.randn(num_rows, case.k, device=device) * 3).to(dtype)
    norm = torch.rand(case.k, device=device) + 0.5 if case.norm else None
    weights = [(torch.randn(case.n, case.k, device=device, dtype=dtype) * case.k**-0.5) for _ in range(copies)]
    residual = torch.randn(num_rows, case.n, device=device).to(dtype) if case.add else None
    return Inputs(x, norm, weights, residual)


def run(
    case: Case, cut: Cut, i: Inputs, copy: int, counters: torch.Tensor, residual: torch.Tensor | None, dependent: bool
) -> torch.Tensor:
    gate = "silu" if case.gate else None
    if isinstance(cut, OneRow):
        return one_row(i.x, i.weights[copy], cut, SMS, None, i.norm, EPS, gate, residual, dependent=dependent)
    return skinny(i.x, i.weights[copy], cut, counters, norm=i.norm, eps=EPS, gate=gate, residual=residual, dependent=dependent)


def separate(case: Case, i: Inputs, copy: int, residual: torch.Tensor | None) -> torch.Tensor:
    """The same by kernels of their own around cuBLAS."""
    x = i.x if i.norm is None else rms_norm(i.x, i.norm, EPS)
    if residual is not None:
        return residual.addmm_(x, i.weights[copy].t())
    y = F.linear(x, i.weights[copy])
    return silu_mul(y) if case.gate else y


def reference(case: Case, i: Inputs) -> torch.Tensor:
    """Float32 throughout, with the first weights."""
    x = i.x.float()
    if i.norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * i.norm
    y = torch.cat([x @ part.float().t() for part in i.weights[0].split(1 << 15)], dim=1)
    if case.gate:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if i.residual is None else i.residual.float() + y


def error(y: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((y.float() - wanted).norm() / wanted.norm()).item()


def checked(case: Case, cut: Cut, i: Inputs, wanted: torch.Tensor, counters: torch.Tensor, dependent: bool) -> float:
    """The relative error of a cut; memory that it takes for its result held NaN before."""
    del_me = torch.full(tuple(wanted.shape), float("nan"), dtype=i.x.dtype, device=i.x.device)
    del del_me
    residual = None if i.residual is None else i.residual.clone()
    found = error(run(case, cut, i, 0, counters, residual, dependent), wanted)
    assert not counters.any().item(), "counters were not put back"
    return found


def product_time(launch: Callable[[int], object], copies: int, side: torch.cuda.Stream) -> float:
    """Seconds a product, over a graph that goes round the weights."""
    calls = max(copies, 12)

    def body() -> None:
        for call in range(calls):
            launch(call % copies)

    return graph_time(body, side) / calls


def compile_small(job: tuple[Case, int, Cut, bool]) -> str:
    """In a process of its own: fill Triton's cache by running a cut on weights of any value. Gives the error's text, or nothing."""
    case, num_rows, cut, dependent = job
    try:
        counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device="cuda")
        inputs = draw(replace(case, n=256), num_rows, 1, "cuda", torch.bfloat16)
        if isinstance(cut, OneRow):  # compiled for the number of groups that a program has
            inputs.weights = [torch.empty(case.n, case.k, dtype=torch.bfloat16, device="cuda")]
            inputs.residual = None if inputs.residual is None else torch.zeros(num_rows, case.n, dtype=torch.bfloat16, device="cuda")
        run(case, cut, inputs, 0, counters, inputs.residual, dependent)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def compiled(pool: ProcessPoolExecutor, jobs: dict[tuple, tuple[Case, int, Cut, bool]]) -> dict[tuple, str]:
    """Run the jobs; gives what failed. Should a process die, the rest is compiled where it is used."""
    try:
        return {key: text for key, text in zip(jobs, pool.map(compile_small, jobs.values(), chunksize=2)) if text}
    except BrokenExecutor as error:
        print("compiling processes:", error)
        return {}


def as_cut(plain: dict) -> Cut:
    return Skinny(**plain) if "block_m" in plain else OneRow(**plain)


def kernel_key(case: Case, cut: Cut, dependent: bool) -> tuple:
    n = case.n if isinstance(cut, OneRow) else 0
    return n, case.k, case.norm, case.gate, case.add, cut, dependent


def on_card(out: Path) -> None:
    begun = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "products": [], "layers": [], "best": {}}
    dependent = torch.cuda.get_device_capability() >= (9, 0)
    jobs = {}
    for case in CASES:
        for num_rows in ROWS:
            for cut in cuts(case, num_rows):
                jobs.setdefault(kernel_key(case, cut, dependent), (case, num_rows, cut, dependent))
    workers = max(1, min(14, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        failed = compiled(pool, jobs)
        for (*_, cut, _), text in failed.items():
            print("does not compile or run:", cut, text)
        print(f"{len(jobs)} kernels compiled, {len(failed)} failed, {time.perf_counter() - begun:.1f} s", flush=True)
        counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32, device="cuda")
        side = torch.cuda.Stream()
        chosen: dict[tuple[Case, int], Cut] = {}
        for case in CASES:
            copies = max(3, -(-(400 << 20) // (2 * case.n * case.k)))
            for num_rows in ROWS:
                if time.perf_counter() - begun > BUDGET_S:
                    print("no time left for", case, num_rows)
                    continue
                try:
                    entry, best = time_case(case, num_rows, copies, counters, side, dependent, failed)
                except Exception as error:
                    print("FAILED", case, num_rows, type(error).__name__, str(error)[:300], flush=True)
                    continue
                result["products"].append(entry)
                if best is not None:
                    chosen[case, num_rows] = best
                    tuned = best if entry["best_us"] < entry["separate_us"] else None
                    result["best"][f"{case.form} {num_rows} {case.n} {case.k}"] = asdict(tuned) if tuned else None
                out.write_text(json.dumps(result, indent=1))
            torch.cuda.empty_cache()
        print(f"products timed, {time.perf_counter() - begun:.1f} s", flush=True)
        more = {kernel_key(case, cut, False): (case, rows, cut, False) for (case, rows), cut in chosen.items()}
        compiled(pool, more)
        print(f"{len(more)} more kernels compiled, {time.perf_counter() - begun:.1f} s", flush=True)
    for model, num_layers in (("llama3-8b", 8), ("qwen3-0.6b", 28)):
        for num_rows in ROWS:
            try:
                result["layers"].append(time_layers(model, num_layers, num_rows, chosen, counters, side))
            except Exception as error:
                print("FAILED layers", model, num_rows, type(error).__name__, str(error)[:300], flush=True)
            out.write_text(json.dumps(result, indent=1))
        torch.cuda.empty_cache()
    show(result)
    print(f"{time.perf_counter() - begun:.1f} s")


def time_case(
    case: Case, num_rows: int, copies: int, counters: torch.Tensor, side: torch.cuda.Stream, dependent: bool, failed: dict
) -> tuple[dict, Cut | None]:
    inputs = draw(case, num_rows, copies, "cuda", torch.bfloat16)
    wanted = reference(case, inputs)
    residual = None if inputs.residual is None else inputs.residual.clone()
    plain_error = error(separate(case, inputs, 0, residual), wanted)
    floor_us = case.n * case.k * 2 / 4.3e12 * 1e6
    entry: dict = asdict(case) | {"form": case.form, "rows": num_rows, "floor_us": floor_us}
    scratch = None if inputs.residual is None else inputs.residual.clone()
    entry["cublas_us"] = product_time(lambda copy: F.linear(inputs.x, inputs.weights[copy]), copies, side) * 1e6
    entry["separate_us"] = product_time(lambda copy: separate(case, inputs, copy, scratch), copies, side) * 1e6
    entry["separate_error"] = plain_error
    entry["cuts"] = []
    for cut in cuts(case, num_rows):
        tried: dict = {"cut": asdict(cut)}
        entry["cuts"].append(tried)
        if text := failed.get(kernel_key(case, cut, dependent)):
            tried["failed"] = text
            continue
        try:
            tried["error"] = checked(case, cut, inputs, wanted, counters, dependent)
            if not tried["error"] < 1e-2:
                tried["failed"] = "wrong"
                print("WRONG", case.name, num_rows, cut, tried["error"], flush=True)
                continue
            tried["us"] = product_time(lambda copy, cut=cut: run(case, cut, inputs, copy, counters, scratch, dependent), copies, side) * 1e6
        except Exception as error_:
            tried["failed"] = f"{type(error_).__name__}: {str(error_)[:200]}"
            print("FAILED", case.name, num_rows, cut, tried["failed"], flush=True)
    good = [tried for tried in entry["cuts"] if "us" in tried]
    if not good:
        return entry, None
    least = min(good, key=lambda tried: tried["us"])
    best = as_cut(least["cut"])
    entry |= {"best_us": least["us"], "best_error": least["error"], "best": least["cut"]}
    entry["best_plain_launch_us"] = product_time(lambda copy: run(case, best, inputs, copy, counters, scratch, False), copies, side) * 1e6
    return entry, best


def time_layers(
    model: str, num_layers: int, num_rows: int, chosen: dict[tuple[Case, int], Cut], counters: torch.Tensor, side: torch.cuda.Stream
) -> dict:
    """Microseconds a layer without attention: o reads a stretch of what qkv wrote."""
    qkv, o, gate_up, down = [case for case in CASES if case.model == model][:4]
    hidden = qkv.k
    weights = [draw(case, 1, num_layers, "cuda", torch.bfloat16).weights for case in (qkv, o, gate_up, down)]
    norms = [torch.rand(hidden, device="cuda") + 0.5 for _ in range(2)]
    start = torch.randn(num_rows, hidden, device="cuda").bfloat16()
    stream = start.clone()
    op = TritonLinear.here()

    def separate_layers() -> torch.Tensor:
        x, residual = rms_norm(stream, norms[0], EPS), stream
        for layer in range(num_layers):
            a = F.linear(x, weights[0][layer])
            x, residual = add_rms_norm(F.linear(a[:, : o.k], weights[1][layer]), residual, norms[1], EPS, 1.0)
            a = F.linear(silu_mul(F.linear(x, weights[2][layer])), weights[3][layer])
            x, residual = add_rms_norm(a, residual, norms[0], EPS, 1.0)
        return residual

    def fused_layers(dependent: bool) -> torch.Tensor:
        for layer in range(num_layers):
            x = stream
            for case, tensors, norm in zip((qkv, o, gate_up, down), weights, (norms[0], None, norms[1], None)):
                inputs = Inputs(x[:, : case.k], norm, [tensors[layer]], None)
                x = run(case, chosen[case, num_rows], inputs, 0, counters, stream if case.add else None, dependent)
        return stream

    def by_table() -> torch.Tensor:
        for layer in range(num_layers):
            a = op(stream, weights[0][layer], None, (norms[0], EPS))
            op(a[:, : o.k], weights[1][layer], residual=stream)
            op(op(stream, weights[2][layer], None, (norms[1], EPS), "silu"), weights[3][layer], residual=stream)
        return stream

    entry: dict = {"model": model, "rows": num_rows, "us": {}}
    wanted = separate_layers().float()
    forms: dict[str, Callable[[], object]] = {"separate": separate_layers, "by table": by_table, "fused": lambda: fused_layers(False)}
    if torch.cuda.get_device_capability() >= (9, 0):
        forms["fused, dependent"] = lambda: fused_layers(True)
    for name, layers in forms.items():
        try:
            entry["us"][name] = graph_time(lambda layers=layers: (stream.copy_(start), layers()), side, 15) * 1e6 / num_layers
            torch.cuda.synchronize()
            if name != "separate":
                entry.setdefault("difference", {})[name] = error(stream, wanted)
        except Exception as error_:
            entry["us"][name] = None
            print("FAILED", model, num_rows, name, str(error_)[:200], flush=True)
    floor = sum(case.n * case.k * 2 for case in (qkv, o, gate_up, down)) / 4.3e12 * 1e6
    return entry | {"floor_us": floor}


def show(result: dict) -> None:
    print(f"\n{'':22}{'rows':>5}{'floor':>8}{'cuBLAS':>8}{'separate':>9}{'best':>8}{'no PDL':>8}  error (separate)  cut")
    for e in result["products"]:
        best = e.get("best")
        cut = "" if best is None else " ".join(f"{key[:7]}={value}" for key, value in best.items())
        print(
            f"{e['model'] + ' ' + e['name']:22}{e['rows']:>5}{e['floor_us']:>8.1f}{e['cublas_us']:>8.1f}{e['separate_us']:>9.1f}"
            f"{e.get('best_us', 0):>8.1f}{e.get('best_plain_launch_us', 0):>8.1f}"
            f"  {e.get('best_error', 0):.4f} ({e['separate_error']:.4f})  {cut}"
        )
    print("\nus a layer without attention")
    for e in result["layers"]:
        times = "  ".join(f"{name}: {'-' if us is None else format(us, '.1f')}" for name, us in e["us"].items())
        worst = max(e.get("difference", {"": 0.0}).values())
        print(f"{e['model']:12} {e['rows']:>3} rows, floor {e['floor_us']:.1f}: {times}  (differ {worst:.4f})")


def table(path: Path) -> None:
    """The lines of a device in `octavo/ops/table.py`."""
    result = json.loads(path.read_text())
    print(f'    "{result["device"]}": {{')
    for key, best in result["best"].items():
        around, *numbers = key.split()
        cut = None if best is None else as_cut(best)
        given = [] if cut is None else [f"{f.name}={getattr(cut, f.name)}" for f in fields(cut) if getattr(cut, f.name) != f.default]
        text = "None" if cut is None else f"{type(cut).__name__}({', '.join(given)})"
        print(f'        ("{around}", {", ".join(numbers)}): {text},')
    print("    },")


def dry() -> None:
    counters = torch.zeros(MAX_BLOCKS, dtype=torch.int32)
    for case in CASES[:3]:
        for num_rows, cut in ((1, OneRow(4, 4, 1)), (8, Skinny(16, 16, 32)), (64, Skinny(64, 16, 32, swap=True))):
            small = replace(case, n=64, k=128)
            inputs = draw(small, num_rows, 1, "cpu", torch.float16)
            found = checked(small, cut, inputs, reference(small, inputs), counters, False)
            print(case.name, num_rows, cut, f"{found:.5f}")
            assert found < 4e-3


def compile_all() -> None:
    """For sm_90, with the sizes that matter of what the compiler made."""
    import triton

    seen = set()
    for case in CASES:
        for num_rows in ROWS:
            for cut in cuts(case, num_rows):
                if kernel_key(case, cut, True) in seen:
                    continue
                seen.add(kernel_key(case, cut, True))
                try:
                    kernel = compile_for_sm_90(case, cut)
                except Exception as error_:
                    print("FAILED", case.form, case.k, cut, str(error_.__cause__ or error_)[-300:], flush=True)
                    continue
                with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                    file.write(kernel.asm["cubin"])
                    file.flush()
                    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
                    usage = subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True).stdout
                print(case.form, case.n, case.k, cut, kernel.metadata.shared, *re.findall(r"REG:\d+ STACK:\d+", usage), flush=True)


def compile_for_sm_90(case: Case, cut: Cut) -> Any:
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from octavo.ops.triton import one_row, skinny

    gate = "silu" if case.gate else None
    if isinstance(cut, OneRow):
        kernel = one_row._one_row
        turns = grid(cut, case.n // (2 if case.gate else 1), SMS)[1]
        values = one_row.constants(cut, case.k, turns, case.norm, gate, False, case.add, True)
    else:
        kernel = skinny._skinny
        values = skinny.constants(cut, case.k, torch.bfloat16, case.norm, gate, False, case.add, True)
    partial = "*fp32" if isinstance(cut, Skinny) and cut.split > 1 else "*bf16"
    types = {
        "x": "*bf16", "weight": "*bf16", "norm": "*fp32" if case.norm else None, "residual": "*bf16" if case.add else None, "bias": None,
        "y": "*bf16", "partial": partial, "counters": "*i32", "M": "i32", "N": "i32", "x_stride": "i32", "eps": "fp32", "scale": "fp32",
    }  # fmt: skip
    names = kernel.arg_names
    values |= {name: None for name in names if types.get(name, "") is None}
    signature = {name: "constexpr" if name in values else types[name] for name in names}
    plain = {*values, "M", "eps", "scale"}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name not in plain}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in values.items()}, aligned)
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": cut.warps, "launch_pdl": True})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--table", type=Path, help="a JSON file of this script; prints its lines of the table")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
    elif asked.compile:
        compile_all()
    elif asked.dry:
        dry()
    else:
        on_card(Path(os.environ.get("OUT", ".")) / "skinny.json")
