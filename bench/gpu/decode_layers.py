"""Layers of a decode step of many sequences: attention variant by variant beside a plain read, whole layers, and each of their operations.

    PYTHONPATH=. python bench/gpu/decode_layers.py              on a GPU, some 30 s: tables, and $OUT/decode_layers.json
    PYTHONPATH=. python bench/gpu/decode_layers.py --interpret  tiny shapes on the CPU, no times

Times are of CUDA graphs over 4 to 300 layers, each with memory and weights of its own, so that L2 does not serve them.
"""

# ruff: noqa: B023
# (what is timed runs at once)

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from octavo.attention.backend import AttentionShape
from octavo.context import Batch
from octavo.ops.table import Wide

QWEN = AttentionShape(16, 8, 128, 128**-0.5)
LLAMA = AttentionShape(32, 8, 128, 128**-0.5)
SHAPES = {"qwen": QWEN, "llama": LLAMA}
if "--interpret" not in sys.argv:
    from octavo.ops.triton.wide import wide
BUDGET_S = float(os.environ.get("BUDGET_S", "85"))
BEGAN = time.perf_counter()
WARM = Path("/tmp/decode-layers-warm")  # what was right when it was compiled


def drawn(num: int, low: int, high: int) -> tuple[int, ...]:
    rng = random.Random(num)
    return tuple(rng.randint(low, high) for _ in range(num))


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    lengths: tuple[int, ...]
    block_tokens: int = 16

    @property
    def shape(self) -> AttentionShape:
        return SHAPES[self.model]

    @property
    def kv_bytes(self) -> int:
        return sum(self.lengths) * 4 * self.shape.kv_heads * self.shape.head_dim


MAIN = Case("qwen 252 of 100..1500", "qwen", drawn(252, 100, 1500))
CASES = [
    MAIN,
    Case("qwen 252, blocks of 32", "qwen", drawn(252, 100, 1500), 32),
    Case("qwen 128 of 600..1600", "qwen", drawn(128, 600, 1600)),
    Case("qwen 64 of 900..1900", "qwen", drawn(64, 900, 1900)),
    Case("qwen 16 of 1000..2000", "qwen", drawn(16, 1000, 2000)),
    Case("qwen 1 x 8192", "qwen", (8192,)),
    Case("qwen 1 x 160", "qwen", (160,)),
    Case("llama 256 x 256", "llama", (256,) * 256),
    Case("llama 64 x 256", "llama", (256,) * 64),
    Case("llama 64 x 2048", "llama", (2048,) * 64),
    Case("llama 1 x 160", "llama", (160,)),
    Case("llama 1 x 2048", "llama", (2048,)),
]


# --- attention variants: name -> backend


def variants(tiny: bool = False) -> dict[str, Callable[[], Any]]:
    from octavo.attention.triton import PieceTuning, TritonAttention, Tuning

    found: dict[str, Callable[[], Any]] = {"default": TritonAttention, "late": Late}
    for block_n, stages, programs, shortest in (
        (64, 3, 4, 64), (64, 3, 3, 64), (64, 3, 4, 128), (128, 3, 2, 128), (128, 3, 2, 64), (128, 3, 1, 128), (32, 3, 4, 32),
    ):  # fmt: skip
        tuning = Tuning(PieceTuning(programs, 8 if tiny else shortest, block_n, 4, stages))
        found[f"n{block_n} s{stages} p{programs} min{shortest}"] = lambda tuning=tuning: TritonAttention(tuning)
    return found


def Late() -> Any:
    """The default, with every launch after all that is ahead has ended."""
    from octavo.attention.triton import TritonAttention
    from octavo.ops.triton import dependent

    class Ours(TritonAttention):
        def run(self, *args: Any) -> torch.Tensor:
            launch = dependent.launch
            dependent.launch = lambda device, early=True: launch(device, False)
            try:
                return super().run(*args)
            finally:
                dependent.launch = launch

    return Ours()


# --- inputs


@dataclass
class Inputs:
    batch: Batch
    table: torch.Tensor
    kvs: list[torch.Tensor]
    q: torch.Tensor


def inputs(case: Case, arena: torch.Tensor, most_layers: int, rows: int | None = None) -> Inputs:
    """`rows` beyond the sequences are padding."""
    shape, device, num = case.shape, arena.device, rows or len(case.lengths)
    lengths = torch.zeros(num, dtype=torch.int32)
    lengths[: len(case.lengths)] = torch.tensor(case.lengths, dtype=torch.int32)
    blocks = -(-lengths // case.block_tokens)
    order = torch.randperm(int(blocks.sum()), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    table = torch.zeros(num, 40960 // case.block_tokens, dtype=torch.int32)
    slots, at = torch.full((num,), -1), 0
    for row, count in enumerate(blocks.tolist()):
        table[row, :count] = order[at : at + count]
        at += count
        if count:
            last = int(lengths[row]) - 1
            slots[row] = int(table[row, last // case.block_tokens]) * case.block_tokens + last % case.block_tokens
    block = (2, case.block_tokens, shape.kv_heads, shape.head_dim)
    size = at * 2 * case.block_tokens * shape.kv_heads * shape.head_dim
    num_layers = max(min(most_layers, arena.numel() // size), 1)
    kvs = [arena[i * size : (i + 1) * size].view(-1, *block) for i in range(num_layers)]
    each = torch.arange(num, device=device)
    batch = Batch(
        tokens=each, positions=(lengths.long() - 1).clamp(min=0).to(device), starts=torch.arange(num + 1, dtype=torch.int32, device=device),
        lengths=lengths.to(device), rows=torch.arange(num, dtype=torch.int32, device=device), slots=slots[None].to(device),
        sample_at=each, sample_rows=each, num_tokens=num, num_slices=num, max_count=1, max_length=40960,
    )  # fmt: skip
    q = torch.randn(num, shape.heads, shape.head_dim, device=device).to(arena.dtype)
    return Inputs(batch, table.to(device), kvs, q)


def error(case: Case, make: Callable[[], Any], arena: torch.Tensor) -> float:
    from octavo.attention.reference import ReferenceAttention

    given, backend, reference = inputs(case, arena, 1, len(case.lengths) + 1), make(), ReferenceAttention()
    given.kvs[0].normal_()
    real = inputs(case, arena, 1)
    plan = reference.plan(real.batch, 0, real.table, case.block_tokens)
    want = reference.run(plan, given.q[:-1].float(), real.kvs[0].float(), case.shape)
    plan = backend.plan(given.batch, 0, given.table, case.block_tokens)
    worst = 0.0
    for _ in range(2):
        got = backend.run(plan, given.q, given.kvs[0], case.shape).float()
        assert bool(got.isfinite().all())
        worst = max(worst, float((got[:-1] - want).norm() / want.norm()))
    return worst


CHECKED = (1, 17, 128, 700, 1300, 64, 3000, 16)


def check(names: list[str], arena: torch.Tensor, tiny: bool = False) -> dict[str, float]:
    found: dict[str, float] = {}
    lengths = (1, 17, 40) if tiny else CHECKED
    for name in names:
        errors = []
        for model, block_tokens in (("qwen", 16), ("llama", 16), ("qwen", 32)):
            try:
                errors.append(error(Case("check", model, lengths, block_tokens), variants(tiny)[name], arena))
            except Exception as problem:
                print(f"{name} {model} {block_tokens}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
                errors.append(float("nan"))
        found[name] = max(errors, key=lambda value: float("inf") if value != value else value)
    return found


# --- times


def graph_time(step: Callable[[], Any], repeats: int = 7) -> float:
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        step()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            step()
        finally:
            graph.capture_end()
        times = []
        for _ in range(repeats + 1):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(side)
            graph.replay()
            end.record(side)
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times[1:])[repeats // 2]


def attention_time(case: Case, make: Callable[[], Any], given: Inputs) -> float:
    backend = make()

    def step() -> None:
        plan = backend.plan(given.batch, 0, given.table, case.block_tokens)
        for kv in given.kvs:
            backend.run(plan, given.q, kv, case.shape)

    return graph_time(step) / len(given.kvs)


def read_time(given: Inputs, runs: int, programs: int, warps: int, ordered: bool) -> tuple[float, int]:
    """Seconds to read the memory of a layer once, in runs of so many bytes, in random order or as it lies."""
    from bench.gpu.roof import read

    kv = given.kvs[0]
    words = kv.numel() * 2 // 4
    num = words * 4 // runs
    order = torch.arange(num) if ordered else torch.randperm(num)
    order, out = order.to(torch.int32).cuda(), torch.zeros(132 * programs, device="cuda")

    def step() -> None:
        for kv in given.kvs:
            read[(132 * programs,)](kv.view(torch.int32), order, out, num, WORDS=runs // 4, num_warps=warps)

    return graph_time(step) / len(given.kvs), num * runs


class Layers:
    """The weights of Qwen3-0.6B's layers, and a step through them."""

    def __init__(self, num: int, rows: int) -> None:
        from octavo.ops.triton.linear import TritonLinear

        def weights(n: int, k: int) -> list[torch.Tensor]:
            return [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5 for _ in range(num)]

        self.num, self.rows, self.linear = num, rows, TritonLinear.here()
        self.qkv, self.o, self.gate_up, self.down = weights(4096, 1024), weights(1024, 2048), weights(6144, 1024), weights(1024, 3072)
        self.norm, self.head_norm = torch.ones(1024, device="cuda"), torch.ones(128, device="cuda")
        self.cos_sin = torch.randn(4096, 128, device="cuda")
        self.x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)

    def step(self, case: Case, given: Inputs, backend: Any, cuts: Mapping[str, Wide] = {}) -> None:
        from octavo.ops.triton.norm import rms_norm
        from octavo.ops.triton.rope_and_write import rope_and_write

        plan = backend.plan(given.batch, 0, given.table, case.block_tokens)
        x, norm = self.x, (self.norm, 1e-6)
        for i in range(self.num):
            kv = given.kvs[i % len(given.kvs)]
            if "qkv" in cuts:
                qkv = wide(rms_norm(x, *norm), self.qkv[i], cuts["qkv"], dependent=True)
            else:
                qkv = self.linear(x, self.qkv[i], norm=norm)
            q = rope_and_write(qkv, kv, given.batch.positions, given.batch.slots[0], self.cos_sin, self.head_norm, self.head_norm, 1e-6)
            y = backend.run(plan, q, kv, case.shape).flatten(1)
            x = wide(y, self.o[i], cuts["o"], residual=x, dependent=True) if "o" in cuts else self.linear(y, self.o[i], residual=x)
            if "gate_up" in cuts:
                z = wide(rms_norm(x, *norm), self.gate_up[i], cuts["gate_up"], "silu", dependent=True)
            else:
                z = self.linear(x, self.gate_up[i], norm=norm, gate="silu")
            if "down" in cuts:
                x = wide(z, self.down[i], cuts["down"], residual=x, dependent=True)
            else:
                x = self.linear(z, self.down[i], residual=x)

    def product(self, name: str, cut: Wide, wide_x: torch.Tensor, sums: torch.Tensor) -> list[torch.Tensor]:
        gate, residual = ("silu" if name == "gate_up" else None), (sums if name in ("o", "down") else None)
        return [wide(wide_x, w, cut, gate, residual, dependent=True) for w in getattr(self, name)]

    def wrong(self, name: str, cut: Wide, wide_x: torch.Tensor) -> float:
        sums = torch.randn(self.rows, 1024, device="cuda", dtype=torch.bfloat16)
        weight = getattr(self, name)[0]
        want = wide_x.float() @ weight.float().t()
        if name == "gate_up":
            gate, up = want.chunk(2, dim=1)
            want = torch.nn.functional.silu(gate) * up
        residual = sums if name in ("o", "down") else None
        if residual is not None:
            want = want + sums.float()
        got = wide(wide_x, weight, cut, "silu" if name == "gate_up" else None, residual, dependent=True).float()
        return float((got - want).norm() / want.norm())

    def parts(self, case: Case, given: Inputs) -> dict[str, Callable[[], Any]]:
        from octavo.ops.triton.best import best
        from octavo.ops.triton.gated import silu_mul
        from octavo.ops.triton.norm import rms_norm
        from octavo.ops.triton.rope_and_write import rope_and_write

        rows, each = self.rows, range(self.num)
        wide = {n: torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for n in (2048, 3072, 4096, 6144)}
        x, sums = self.x, torch.zeros(rows, 1024, device="cuda", dtype=torch.bfloat16)
        b = given.batch
        found: dict[str, Callable[[], Any]] = {
            "norm": lambda: [rms_norm(x, self.norm, 1e-6) for _ in each],
            "qkv": lambda: [self.linear(x, w) for w in self.qkv],
            "rope and write": lambda: [
                rope_and_write(wide[4096], kv, b.positions, b.slots[0], self.cos_sin, self.head_norm, self.head_norm, 1e-6)
                for kv in (given.kvs[i % len(given.kvs)] for i in each)
            ],
            "o": lambda: [self.linear(wide[2048], w, residual=sums) for w in self.o],
            "gate and up": lambda: [self.linear(x, w) for w in self.gate_up],
            "gated": lambda: [silu_mul(wide[6144]) for _ in each],
            "gate, up and gated": lambda: [self.linear(x, w, gate="silu") for w in self.gate_up],
            "down": lambda: [self.linear(wide[3072], w, residual=sums) for w in self.down],
        }
        head = torch.randn(151936, 1024, device="cuda", dtype=torch.bfloat16) * 0.03
        logits = torch.randn(rows, 151936, device="cuda", dtype=torch.bfloat16)
        found["head"] = lambda: [self.linear(x, head) for _ in each]
        found["best"] = lambda: [best(logits) for _ in each]
        return found


FEW_OUT = (Wide(64, 32, 128, 4, 5), Wide(64, 32, 256, 4, 3), Wide(64, 32, 256, 4, 4), Wide(64, 64, 256, 4, 3), Wide(64, 16, 256, 4, 4))
CUTS = {
    "qkv": (Wide(128, 64, 128, 4, 4), Wide(128, 64, 256, 4, 2), Wide(64, 64, 128, 4, 4), Wide(64, 32, 256, 4, 4)),
    "o": FEW_OUT,
    "gate_up": (Wide(128, 64, 64, 8, 4), Wide(128, 64, 128, 8, 3), Wide(128, 32, 128, 4, 3), Wide(64, 32, 128, 4, 4)),
    "down": FEW_OUT,
}
IN = {"qkv": 1024, "o": 2048, "gate_up": 1024, "down": 3072}


def measure() -> None:
    workers = 11
    WARM.mkdir(exist_ok=True)
    shares = [*(f"{i}/{workers}" for i in range(workers)), "parts", *CUTS]
    processes = [subprocess.Popen([sys.executable, __file__, "--warm", share]) for share in shares]
    arena = torch.empty(7 * 2**29, device="cuda", dtype=torch.bfloat16)  # 7 GiB
    for part in arena.split(2**28):
        part.normal_()
    for process in processes:
        process.wait()
    rows: list[dict[str, Any]] = []

    def note(kind: str, name: str, variant: str, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {"kind": kind, "case": name, "variant": variant}
        if since_s() > BUDGET_S:
            return row
        try:
            row |= body()
        except Exception as problem:
            row["problem"] = f"{type(problem).__name__}: {str(problem)[:300]}"
            print(kind, name, variant, row["problem"], flush=True)
        rows.append(row)
        return row

    def since_s() -> float:
        return time.perf_counter() - BEGAN

    def save() -> None:
        Path(os.environ.get("OUT", "."), "decode_layers.json").write_text(json.dumps(rows))

    print(f"compiled after {since_s():.0f} s", flush=True)
    seen: dict[str, float] = {}
    for path in WARM.glob("*.json"):
        seen |= json.loads(path.read_text())
    names = [name for name in variants() if seen.get(name, 1.0) < 8e-3]
    print(f"not right on small inputs: {[name for name in variants() if name not in names]}", flush=True)
    errors = check(names, torch.empty(2**27, device="cuda", dtype=torch.bfloat16))
    for name, value in errors.items():
        rows.append({"kind": "check", "variant": name, "error": value})
        print(f"check {name}: {value:.5f}" + ("" if value < 8e-3 else "   WRONG"), flush=True)
    good = [name for name in names if errors[name] < 8e-3]
    print(f"checked after {since_s():.0f} s", flush=True)

    given = inputs(MAIN, arena, 8)
    for runs, programs, warps, ordered in (
        (16384, 8, 8, False), (16384, 16, 4, False), (65536, 4, 16, False), (65536, 4, 16, True), (2048, 16, 4, False),
    ):  # fmt: skip
        def read(runs=runs, programs=programs, warps=warps, ordered=ordered) -> dict[str, Any]:
            seconds, num_bytes = read_time(given, runs, programs, warps, ordered)
            return {"us": seconds * 1e6, "tb_per_s": num_bytes / seconds / 1e12}
        row = note("read", MAIN.name, f"runs of {runs}, {programs} programs of {warps} warps, {'in order' if ordered else 'random'}", read)
        print(f"read {row['variant']}: {row.get('tb_per_s', 0):.3f} TB/s", flush=True)

    for case in CASES:
        num_layers = max(min(256 * 2**20 // case.kv_bytes, 200), 8)
        given = inputs(case, arena, num_layers)
        found = []
        for name in good:
            row = note("attention", case.name, name, lambda: {"us": attention_time(case, variants()[name], given) * 1e6})
            if "us" in row:
                row["tb_per_s"] = case.kv_bytes / row["us"] / 1e6
                found.append((row["us"], name))
        save()
        print(f"{case.name} ({case.kv_bytes / 1e6:.1f} MB)  " + "; ".join(f"{name} {us:.1f}" for us, name in sorted(found)), flush=True)
    for case, padded in ((MAIN, 256), (CASES[2], 128), (CASES[3], 64)):
        given = inputs(case, arena, 8, padded)
        layers = Layers(8, padded)
        for name, part in layers.parts(case, given).items():
            row = note("part", case.name, name, lambda: {"us": graph_time(part) / layers.num * 1e6})
            print(f"{padded} rows, {name}: {row.get('us', 0):.2f} us", flush=True)
        cuts: dict[str, Wide] = {}
        for name, tried in CUTS.items():
            x = torch.randn(padded, IN[name], device="cuda", dtype=torch.bfloat16)
            sums = torch.zeros(padded, 1024, device="cuda", dtype=torch.bfloat16)
            times = {}
            for cut in tried:
                row = note(
                    "part", case.name, f"{name} {cut}",
                    lambda: {
                        "error": layers.wrong(name, cut, x),
                        "us": graph_time(lambda: layers.product(name, cut, x, sums)) / layers.num * 1e6,
                    },
                )  # fmt: skip
                print(f"{padded} rows, {name} {cut}: {row.get('us', 0):.2f} us, error {row.get('error', 0):.4f}", flush=True)
                if row.get("error", 1) < 1e-2:
                    times[cut] = row["us"]
            if times:
                cuts[name] = min(times, key=times.__getitem__)
        timed = [row for row in rows if (row["kind"], row["case"]) == ("attention", case.name) and "us" in row]
        ranked = sorted((row["us"], row["variant"]) for row in timed)
        tops = [name for _, name in ranked if name in good][:3]
        tops += [name for name in ("default", "late") if name not in tops]
        for name in tops:
            row = note(
                "layer", case.name, name, lambda: {"us": graph_time(lambda: layers.step(case, given, variants()[name]())) / 8 * 1e6}
            )
            print(f"whole layer at {padded}, {name}: {row.get('us', 0):.1f} us", flush=True)
        for name in ("default",):
            for which in (("gate_up",), ("o", "down"), ("qkv",), tuple(cuts)):
                some = {product: cuts[product] for product in which if product in cuts}
                row = note(
                    "layer", case.name, f"{name}, own {which}",
                    lambda: {"us": graph_time(lambda: layers.step(case, given, variants()[name](), some)) / 8 * 1e6},
                )  # fmt: skip
                print(f"whole layer at {padded}, {name}, own {which}: {row.get('us', 0):.1f} us", flush=True)
        save()
    print(f"{since_s():.0f} s in all")


def warm_parts(which: str) -> None:
    """Compile what is beside attention by running it once."""
    arena = torch.zeros(2**26, device="cuda", dtype=torch.bfloat16)
    case = replace(MAIN, lengths=(300,) * 16)
    for rows in (256, 128, 64):
        layers, given = Layers(1, rows), inputs(case, arena, 1, rows)
        if which == "parts":
            for part in layers.parts(case, given).values():
                part()
            layers.step(case, given, variants()["default"]())
        elif which in CUTS:
            x = torch.randn(rows, IN[which], device="cuda", dtype=torch.bfloat16)
            for cut in CUTS[which]:
                try:
                    layers.product(which, cut, x, torch.zeros(rows, 1024, device="cuda", dtype=torch.bfloat16))
                except Exception as problem:
                    print(which, cut, str(problem)[:200], flush=True)
    if which == "parts":
        for runs, programs, warps in ((16384, 8, 8), (16384, 16, 4), (65536, 4, 16), (2048, 16, 4)):
            read_time(inputs(case, arena, 1), runs, programs, warps, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.interpret:
        from tests.interpreter import interpret

        interpret()
        SHAPES.update(qwen=AttentionShape(16, 8, 16, 0.25), llama=AttentionShape(32, 8, 16, 0.25))
        print(check(sys.argv[2:] or ["default"], torch.zeros(2**16, dtype=torch.float16), tiny=True))
    elif asked.warm in ("parts", *CUTS):
        warm_parts(asked.warm)
    elif asked.warm:
        share, shares = map(int, asked.warm.split("/"))
        found = check(list(variants())[share::shares], torch.empty(2**24, device="cuda", dtype=torch.bfloat16), tiny=True)
        (WARM / f"{share}.json").write_text(json.dumps(found))
    else:
        measure()


if __name__ == "__main__":
    main()
