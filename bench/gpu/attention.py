"""Checks and times the Triton attention kernels at the shapes that matter, variant by variant.

python -m bench.gpu.attention              on a GPU: a table, and $OUT/attention.json
python -m bench.gpu.attention --interpret  tiny shapes on the CPU, no times
python -m bench.gpu.attention --compile    what each variant costs when compiled for sm_90
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from octavo.attention import cudnn
from octavo.attention.backend import AttentionShape
from octavo.attention.reference import ReferenceAttention
from octavo.attention.triton import PieceTuning, TileTuning, TritonAttention, Tuning
from octavo.context import Batch
from octavo.ops.kv_format import COMPRESSED, FP8, compressed, kv_dtype
from octavo.ops.room import token_room

COPY_RATE = 4.24e12  # bytes/s
MATMUL_RATE = 764e12  # FLOP/s
BLOCK_TOKENS = 16
LLAMA = AttentionShape(32, 8, 128, 128**-0.5)
QWEN = AttentionShape(16, 8, 128, 128**-0.5)
MODELS = {"llama": LLAMA, "qwen": QWEN}
CAPTURED_LENGTH = 40960
STORED = ("i8", "fp8e4nv", "fp8e5")  # compressed formats of K and V, as Triton names them

PIECES = [
    PieceTuning(block_n=block_n, num_warps=warps, num_stages=stages) for block_n, warps, stages in [(64, 4, 3), (128, 4, 3), (32, 4, 3)]
]
TILES = [
    TileTuning(block_m=block_m, block_n=block_n, num_warps=warps, num_stages=stages)
    for block_m, block_n, warps, stages in [(128, 128, 8, 3), (128, 128, 8, 5), (64, 64, 4, 3)]
]
SHARES = [(1, 128), (2, 128), (2, 64), (3, 64), (4, 128)]  # programs a multiprocessor, fewest tokens of one


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    slices: tuple[tuple[int, int], ...]  # count, length
    element_bytes: int = 2  # of K and V

    @property
    def shape(self) -> AttentionShape:
        return MODELS[self.model]

    @property
    def kv_bytes(self) -> int:
        return sum(length for _, length in self.slices) * 2 * self.shape.kv_heads * self.shape.head_dim * self.element_bytes

    @property
    def flop(self) -> int:
        pairs = sum(count * (length - count) + count * (count + 1) // 2 for count, length in self.slices)
        return 4 * self.shape.heads * self.shape.head_dim * pairs

    @property
    def floor_s(self) -> float:
        return max(self.kv_bytes / COPY_RATE, self.flop / MATMUL_RATE)


def decode(model: str, num: int, length: int) -> Case:
    return Case(f"{model} {num} x {length}", model, ((1, length),) * num)


def uneven(model: str, num: int) -> Case:
    rng = random.Random(1)
    return Case(f"{model} {num} x 100..1200", model, tuple((1, rng.randint(100, 1200)) for _ in range(num)))


def late(num: int, low: int, high: int) -> Case:
    """What is left of many sequences that end at different times."""
    rng = random.Random(2)
    return Case(f"qwen {num} x {low}..{high}", "qwen", tuple((1, rng.randint(low, high)) for _ in range(num)))


def prompts(model: str, num: int) -> Case:
    rng = random.Random(1)
    return Case(f"{model} {num} x 100..1024 fresh", model, tuple((n, n) for n in (rng.randint(100, 1024) for _ in range(num))))


DECODES = [
    uneven("qwen", 256), decode("llama", 256, 256), decode("llama", 64, 256), decode("qwen", 1, 160), decode("llama", 1, 64),
    decode("llama", 1, 512), decode("llama", 1, 2048), decode("llama", 1, 8192), decode("llama", 8, 2048), decode("llama", 64, 2048),
    decode("qwen", 8, 512), decode("llama", 256, 64), late(185, 400, 1400), late(130, 600, 1600), late(64, 900, 1900), late(28, 1000, 2000),
]  # fmt: skip
FRESH = [
    Case("llama 4 x 4096 fresh", "llama", ((4096, 4096),) * 4),
    Case("llama 32 x 512 fresh", "llama", ((512, 512),) * 32),
    Case("qwen 24 x 640 fresh", "qwen", ((640, 640),) * 24),
    prompts("llama", 24),
    prompts("qwen", 24),
    Case("llama 1 x 16384 fresh", "llama", ((16384, 16384),)),
    Case("llama 60 decodes + 4 x 4000", "llama", ((1, 600),) * 60 + ((4000, 4000),) * 4),
]
MIXED = [
    Case("llama 2048 after 6144", "llama", ((2048, 8192),)),
    Case("llama 200 decodes + 1024", "llama", ((1, 600),) * 200 + ((1024, 1024),)),
    Case("qwen 200 decodes + 512", "qwen", ((1, 600),) * 200 + ((512, 512),)),
]


@dataclass
class Inputs:
    batch: Batch
    table: torch.Tensor
    kvs: list[torch.Tensor]  # one a layer
    q: torch.Tensor


def inputs(case: Case, arena: torch.Tensor, num_layers: int, bounded: bool = False) -> Inputs:
    """`arena` [num_blocks * ...] flat random memory, which the layers share out."""
    shape, device = case.shape, arena.device
    counts = torch.tensor([count for count, _ in case.slices])
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).to(torch.int32)
    blocks = [-(-length // BLOCK_TOKENS) for _, length in case.slices]
    order = torch.randperm(sum(blocks), dtype=torch.int32)
    table = torch.zeros(len(blocks), -(-max(blocks) // 16) * 16, dtype=torch.int32)
    for row, (first, num) in enumerate(zip(itertools.accumulate(blocks, initial=0), blocks)):
        table[row, :num] = order[first : first + num]
    block = (2, BLOCK_TOKENS, shape.kv_heads, shape.head_dim)
    layer_size = sum(blocks) * 2 * BLOCK_TOKENS * shape.kv_heads * shape.head_dim
    num_layers = max(min(num_layers, arena.numel() // layer_size), 1)
    kvs = [arena[i * layer_size : (i + 1) * layer_size].view(-1, *block) for i in range(num_layers)]
    num_tokens = int(starts[-1])
    positions = [torch.arange(length - count, length) for count, length in case.slices]
    slots = [table[row, at // BLOCK_TOKENS].long() * BLOCK_TOKENS + at % BLOCK_TOKENS for row, at in enumerate(positions)]
    fresh = [count for count, _ in itertools.takewhile(lambda slice: slice[0] == slice[1], reversed(case.slices))][::-1]
    none = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    lengths = [length for _, length in case.slices]
    batch = Batch(
        tokens=none, positions=none, starts=starts.to(device), lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        rows=torch.arange(len(blocks), dtype=torch.int32, device=device), sample_at=none, sample_rows=none,
        slots=torch.cat(slots)[None].to(device),
        num_tokens=num_tokens, num_slices=len(blocks), max_count=int(counts.max()),
        max_length=CAPTURED_LENGTH if bounded else max(lengths), fresh=tuple(fresh),
        max_old_count=max((count for count, _ in case.slices[: len(blocks) - len(fresh)]), default=0),
    )  # fmt: skip
    q = torch.randn(token_room(num_tokens), shape.heads, shape.head_dim, device=device).to(arena.dtype)[:num_tokens]
    return Inputs(batch, table.to(device), kvs, q)


def layers_for(case: Case) -> int:
    """Enough that the L2 cache holds none of a layer's memory when its turn comes again."""
    return max(min(128 * 2**20 // case.kv_bytes, 300), 8) if case.kv_bytes < 2**30 else 4


def error(case: Case, tuning: Tuning, arena: torch.Tensor) -> float:
    """Relative error against float32, over fresh inputs with padding tokens' worth of NaN in unused memory's place."""
    given = inputs(case, arena, 1)
    kv = given.kvs[0].normal_()
    reference, backend = ReferenceAttention(), TritonAttention(tuning, use_cudnn=False)
    want = reference.run(reference.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q.float(), kv.float(), case.shape)
    got = backend.run(backend.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q, kv, case.shape).float()
    return float((got - want).norm() / want.norm())


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of a step, and what the step gave."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def replay_error(case: Case, tuning: Tuning, arena: torch.Tensor) -> float:
    """Relative error of the last of three replays, each with other lengths than the graph was captured with."""
    given = inputs(case, arena, 1, bounded=True)
    kv, reference, backend = given.kvs[0].normal_(), ReferenceAttention(), TritonAttention(tuning, use_cudnn=True)
    longest = given.batch.lengths.clone()

    def step() -> torch.Tensor:
        plan = backend.plan(given.batch, 0, given.table, BLOCK_TOKENS)
        backend.run(plan, given.q, kv, case.shape)
        return backend.run(plan, given.q, kv, case.shape)

    graph, out = captured(step)
    for part in (3, 1, 2):  # padding slices, short ones and others, in changing places
        given.batch.lengths.copy_((longest * part // 4) * (torch.arange(len(longest), device=arena.device) % 5 != part))
        out.fill_(float("nan"))
        graph.replay()
    want = reference.run(reference.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q.float(), kv.float(), case.shape)
    want = torch.where((given.batch.lengths > 0)[:, None, None], want, 0)
    return float((out.float() - want).norm() / want.norm())


def graph_time(step: Callable[[], Any], repeats: int = 7) -> float:
    """Median seconds of one replay of `step` captured in a graph."""
    graph, _ = captured(step)
    graph.replay()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def layer_time(case: Case, tuning: Tuning | None, given: Inputs, use_cudnn: bool = False) -> float:
    """Seconds a layer, the scheduling kernels shared out among the layers."""
    backend = TritonAttention(tuning, use_cudnn)

    def step() -> None:
        plan = backend.plan(given.batch, 0, given.table, BLOCK_TOKENS)
        for kv in given.kvs:
            backend.run(plan, given.q, kv, case.shape)

    return graph_time(step) / len(given.kvs)


def difference(case: Case, given: Inputs) -> float:
    """Relative difference of the path by cuDNN from the paged kernels; exactly 0 where it was not taken."""

    def run(use_cudnn: bool) -> torch.Tensor:
        backend = TritonAttention(use_cudnn=use_cudnn)
        return backend.run(backend.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q, given.kvs[0], case.shape).float()

    cudnn.WORTH_FLOP, before = 0.0, cudnn.WORTH_FLOP
    got, want = run(True), run(False)
    cudnn.WORTH_FLOP = before
    return float((got - want).norm() / want.norm())


def alternatives(case: Case, given: Inputs) -> dict[str, Callable[[], Any]]:
    """Unpaged attention of torch, for contexts that are wholly in this step: dense where all are of one length, and ragged.

    "rounded" is the call that the backend makes; "exact" has the batch's own shape; "strided" has K and V in a packed product; "widest"
    has one shape for all batches.
    """
    from octavo.attention.triton_gather import gather

    shape, (count, _) = case.shape, case.slices[0]
    num, q = len(case.slices), given.q
    room = token_room(q.shape[0])
    wide = q.as_strided((room, *q.shape[1:]), q.stride())
    k, v = (torch.randn(room, shape.kv_heads, shape.head_dim, device=q.device, dtype=q.dtype) for _ in range(2))
    packed = torch.randn(room, shape.heads + 2 * shape.kv_heads, shape.head_dim, device=q.device, dtype=q.dtype)
    _, k_view, v_view = packed.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    found = cudnn.prompts(given.batch)
    starts, longest = given.batch.starts, max(given.batch.fresh)
    wide_starts = torch.nn.functional.pad(starts, (0, 64 - num), value=q.shape[0])

    def dense() -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q4, k4, v4 = (x[: num * count].view(num, count, -1, shape.head_dim).transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q4, k4, v4, is_causal=True, scale=shape.scale, enable_gqa=True)

    calls = {
        "ragged rounded": lambda: cudnn.ragged(wide, k, v, found.starts, found.longest, shape.scale),
        "ragged exact": lambda: cudnn.ragged(q, k[: q.shape[0]], v[: q.shape[0]], starts, longest, shape.scale),
        "ragged strided": lambda: cudnn.ragged(wide, k_view, v_view, found.starts, found.longest, shape.scale),
        "ragged widest": lambda: cudnn.ragged(wide, k, v, wide_starts, room, shape.scale),
        "gather": lambda: gather(given.kvs[0], None, given.batch.slots[0], 0, q.shape[0], room, q.dtype),
    }
    return calls | ({"dense": dense} if len(set(case.slices)) == 1 else {})


def strided_difference(case: Case, given: Inputs) -> float:
    """Relative difference of a ragged call on views of a packed product from one on packed K and V."""
    shape, q = case.shape, given.q
    packed = torch.randn(q.shape[0], shape.heads + 2 * shape.kv_heads, shape.head_dim, device=q.device, dtype=q.dtype)
    _, k, v = packed.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    starts, longest = given.batch.starts, max(given.batch.fresh)
    got, want = (cudnn.ragged(q, *kv, starts, longest, shape.scale).float() for kv in ((k, v), (k.contiguous(), v.contiguous())))
    return float((got - want).norm() / want.norm())


def first_call_time(call: Callable[[], Any]) -> float:
    """Seconds that a first call takes, plans and kernels to be made included."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


class Report:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.began = time.perf_counter()

    def attempt(self, kind: str, name: str, variant: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """One row, whatever happens."""
        row: dict[str, Any] = {"kind": kind, "case": name, "variant": variant}
        try:
            row |= measure()
        except Exception as problem:
            row["problem"] = f"{type(problem).__name__}: {str(problem)[:300]}"
            print(f"{kind} {name} {variant}: {row['problem']}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
        self.rows.append(row)
        return row

    def save(self) -> None:
        folder = Path(os.environ.get("OUT", "."))
        (folder / "attention.json").write_text(json.dumps(self.rows, indent=1))

    def since_s(self) -> float:
        return time.perf_counter() - self.began


def label(tuning: PieceTuning | TileTuning) -> str:
    if isinstance(tuning, PieceTuning):
        return f"n{tuning.block_n} w{tuning.num_warps} s{tuning.num_stages} p{tuning.programs} min{tuning.shortest}"
    return f"m{tuning.block_m} n{tuning.block_n} w{tuning.num_warps} s{tuning.num_stages}"


def rate(case: Case, seconds: float) -> dict[str, Any]:
    return {
        "us": round(seconds * 1e6, 2), "gb_per_s": round(case.kv_bytes / seconds / 1e9),
        "tflop_per_s": round(case.flop / seconds / 1e12, 1), "of_floor": round(case.floor_s / seconds, 3),
    }  # fmt: skip


CHECKED_DECODES = tuple((1, length) for length in (1, 17, 128, 700, 1300, 64, 3000))
CHECKED_MIXED = ((1, 700), (150, 150), (200, 900), (1, 1), (3, 500), (1, 90))
TINY_DECODES = tuple((1, length) for length in (1, 17, 40))
TINY_MIXED = ((1, 30), (18, 33))


def check(
    report: Report, arena: torch.Tensor, pieces: Sequence[PieceTuning], tiles: Sequence[TileTuning], tiny: bool = False
) -> tuple[set[str], set[str]]:
    """The labels of variants that are right."""
    good: tuple[set[str], set[str]] = set(), set()
    for kind, slices, variants in (
        (0, TINY_DECODES if tiny else CHECKED_DECODES, [replace(Tuning(), pieces=tuning) for tuning in pieces]),
        (1, TINY_MIXED if tiny else CHECKED_MIXED, [replace(Tuning(), tiles=tuning) for tuning in tiles]),
    ):
        for tuning in variants:
            name = label((tuning.pieces, tuning.tiles)[kind])
            errors = []
            for model in MODELS:
                case = Case(f"{model} check", model, slices)
                row = report.attempt("check", case.name, name, lambda case=case, tuning=tuning: {"error": error(case, tuning, arena)})
                errors.append(row.get("error", float("nan")))
            if all(value < (1e-3 if arena.dtype == torch.float16 else 8e-3) for value in errors):
                good[kind].add(name)
            else:
                print(f"WRONG {name}: {errors}", flush=True)
    return good


def warm(share: int, shares: int) -> None:
    """Compile every `shares`-th variant into the cache by running it once, so that the measuring process finds it there."""
    arena = torch.randn(2**22, device="cuda").to(torch.bfloat16)
    report = Report()
    check(report, arena, PIECES[share::shares], TILES[share::shares], tiny=True)
    tunings = [None, *(Tuning(pieces) for pieces in PIECES), *(Tuning(tiles=tiles) for tiles in TILES)]
    for name, model, tuning in list(itertools.product(sorted(COMPRESSED), MODELS, tunings))[share::shares]:
        for slices in (TINY_DECODES, TINY_MIXED) if tuning is None else (TINY_DECODES if tuning.tiles == TileTuning() else TINY_MIXED,):
            report.attempt("warm", model, name, lambda: {"error": compressed_error(Case(model, model, slices), name, arena, tuning)})  # noqa: B023


def measure(report: Report) -> None:
    workers = 8
    processes = [subprocess.Popen([sys.executable, "-m", "bench.gpu.attention", "--warm", f"{i}/{workers}"]) for i in range(workers)]
    arena = torch.empty(3 * 2**30, device="cuda", dtype=torch.bfloat16)  # 6 GiB
    for part in arena.split(2**28):
        part.normal_()
    for process in processes:
        process.wait()
    print(f"compiled after {report.since_s():.0f} s", flush=True)
    good_pieces, good_tiles = check(report, torch.empty(2**26, device="cuda", dtype=torch.bfloat16), PIECES, TILES)
    print(f"checked after {report.since_s():.0f} s: {len(good_pieces)} of {len(PIECES)}, {len(good_tiles)} of {len(TILES)}", flush=True)
    pieces = [tuning for tuning in PIECES if label(tuning) in good_pieces]
    tiles = [tuning for tuning in TILES if label(tuning) in good_tiles]

    for case in (DECODES[0], decode("llama", 1, 8192)):
        row = report.attempt("check", case.name, "replays", lambda: {"error": replay_error(case, Tuning(), arena)})  # noqa: B023
        print(f"replays of {case.name}: error {row.get('error')}", flush=True)

    for case in DECODES:
        given = inputs(case, arena, layers_for(case), bounded=True)

        def timed(tuning: PieceTuning, case: Case = case, given: Inputs = given) -> float:
            row = report.attempt("decode", case.name, label(tuning), lambda: rate(case, layer_time(case, Tuning(tuning), given)))
            return row.get("us", float("inf"))

        times = {tuning: timed(tuning) for tuning in pieces}
        if not times:
            break
        winner = min(times, key=times.__getitem__)
        shared = [replace(winner, programs=programs, shortest=shortest) for programs, shortest in SHARES]
        for tuning in shared:
            timed(tuning)
    print(f"decodes after {report.since_s():.0f} s", flush=True)

    measure_compressed(report, arena)
    print(f"compressed formats after {report.since_s():.0f} s", flush=True)
    measure_prefill(report, arena, tiles)
    case = DECODES[0]
    given = inputs(case, arena, 1, bounded=True)
    for num_layers in (1, 3):  # the difference of two layers tells a layer's time, the rest is scheduling
        given.kvs = given.kvs[:1] * num_layers
        report.attempt("schedule", case.name, f"{num_layers} layers", lambda: {"us": layer_time(case, Tuning(), given) * num_layers * 1e6})  # noqa: B023


def compressed_error(case: Case, name: str, arena: torch.Tensor, tuning: Tuning | None = None) -> float:
    """Relative error with K and V in a compressed format, against the reference that reads the same memory."""
    given = inputs(case, arena, 1)
    values = given.kvs[0].normal_().transpose(1, 2)  # [num_blocks, block_tokens, 2, kv_heads, head_dim]
    scales = fp8_scales(name, arena.device) if name in FP8 else torch.empty((1, 2, 1, 1), dtype=torch.float16, device=arena.device)
    stored, new = compressed(values, kv_dtype(name), scales)
    kv = stored.transpose(1, 2).contiguous()
    scales = scales if new is None else new.transpose(1, 2).contiguous()
    reference, backend = ReferenceAttention(), TritonAttention(tuning)
    want = reference.run(reference.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q.float(), kv, case.shape, scales)
    got = backend.run(backend.plan(given.batch, 0, given.table, BLOCK_TOKENS), given.q, kv, case.shape, scales).float()
    return float((got - want).norm() / want.norm())


def fp8_scales(name: str, device: torch.device) -> torch.Tensor:
    return torch.tensor([0.5, 2.0], device=device)


def compressed_time(case: Case, name: str, arena: torch.Tensor, tuning: Tuning | None) -> float:
    """Seconds a layer. What the memory holds does not matter."""
    given = inputs(case, arena, 2 * layers_for(case), bounded=case in DECODES)
    kvs = [kv.view(kv_dtype(name)).flatten() for kv in given.kvs]
    kvs = [half.view(given.kvs[0].shape) for kv in kvs for half in kv.chunk(2)]
    each = [torch.rand(kv.shape[:4], device=arena.device).half() for kv in kvs] if name == "int8" else []
    whole = fp8_scales(name, arena.device)
    backend = TritonAttention(tuning)

    def step() -> None:
        plan = backend.plan(given.batch, 0, given.table, BLOCK_TOKENS)
        for number, kv in enumerate(kvs):
            backend.run(plan, given.q, kv, case.shape, each[number] if each else whole)

    return graph_time(step) / len(kvs)


def measure_compressed(report: Report, arena: torch.Tensor) -> None:
    """fp8 and int8 memory: the default tuning, and the variants that could be better."""
    small = torch.empty(2**26, device="cuda", dtype=torch.bfloat16)
    prefill = MIXED[0]
    for name in sorted(COMPRESSED):
        for slices in (CHECKED_DECODES, (*CHECKED_MIXED, (1100, 1500))):
            for model in MODELS:
                case = Case(f"{model} {name}", model, slices)
                row = report.attempt("check", case.name, name, lambda: {"error": compressed_error(case, name, small)})  # noqa: B023
                print(f"{name} {model}: error {row.get('error')}", flush=True)
        for case in (DECODES[0], DECODES[1], DECODES[2], DECODES[7], DECODES[9], prefill):
            halved = replace(case, name=f"{case.name} {name}", element_bytes=1)
            variants: list[Tuning | None] = [None]
            variants += [Tuning(tiles=tiles) for tiles in TILES] if case is prefill else [Tuning(pieces) for pieces in PIECES]
            for tuning in variants:
                label_ = "default" if tuning is None else label(tuning.tiles if case is prefill else tuning.pieces)
                report.attempt("compressed", halved.name, label_, lambda: rate(halved, compressed_time(case, name, arena, tuning)))  # noqa: B023


def measure_prefill(report: Report, arena: torch.Tensor, tiles: Sequence[TileTuning]) -> None:
    fresh_check = Case("prompts check", "llama", ((1, 300), (200, 500), (700, 700), (1500, 1500), (64, 64)))
    for case in [fresh_check, *FRESH]:
        given = inputs(case, arena, 4)
        row = report.attempt("check", case.name, "cudnn against ours", lambda: {"error": difference(case, given)})  # noqa: B023
        print(f"cudnn {case.name}: differs by {row.get('error')}", flush=True)
        if case is fresh_check:
            continue
        if len(case.slices) == len(given.batch.fresh):
            row = report.attempt("check", case.name, "strided", lambda: {"error": strided_difference(case, given)})  # noqa: B023
            print(f"cudnn {case.name}, strided: differs by {row.get('error')}", flush=True)
            for name, call in alternatives(case, given).items():
                report.attempt("first call", case.name, name, lambda: {"us": first_call_time(call) * 1e6})  # noqa: B023
                report.attempt("prefill", case.name, name, lambda: rate(case, graph_time(call)))  # noqa: B023
        for name, use_cudnn in (("backend", True), ("backend without cudnn", False)):
            report.attempt("prefill", case.name, name, lambda: rate(case, layer_time(case, None, given, use_cudnn)))  # noqa: B023
    for case in FRESH + MIXED:
        given = inputs(case, arena, 4)
        for tuning in tiles:
            report.attempt("prefill", case.name, label(tuning), lambda: rate(case, layer_time(case, Tuning(tiles=tuning), given)))  # noqa: B023


def table(report: Report, most: int = 3) -> None:
    """The best variants of each case."""
    cases = dict.fromkeys((row["kind"], row["case"]) for row in report.rows if "us" in row)
    for kind, case in cases:
        rows = [row for row in report.rows if (row["kind"], row["case"]) == (kind, case) and "us" in row]
        named = [row for row in rows if row["variant"].split()[0] in ("backend", "ragged", "dense", "gather")]
        ranked = sorted(rows, key=lambda row: row["us"])
        shown = ranked[:most] + [row for row in named if row not in ranked[:most]] + ranked[-1:]
        print(f"{kind:8} {case}")
        for row in shown:
            rates = f"{row.get('gb_per_s', 0):5} GB/s  {row.get('tflop_per_s', 0):6} TFLOP/s  {row.get('of_floor', 0):6.1%}"
            print(f"    {row['us']:9.2f} us  {rates}  {row['variant']}")


def compile_all() -> None:
    from bench.gpu.compiled import compile_for
    from octavo.attention.triton_decode import attend_pieces
    from octavo.attention.triton_prefill import attend_tiles

    numbers = dict(
        q_stride="i32:16", table_stride="i32:16", block_stride="i32:16", v_offset="i32:16", token_stride="i32:16", head_stride="i32:16",
        scale_stride="i32:16", scale="fp32", softcap="fp32", window="i32:16",
    )  # fmt: skip
    cases = [(shape, "bf16", tuning, None) for shape in MODELS.values() for tuning in PIECES]
    cases += [(shape, "bf16", None, tuning) for shape in MODELS.values() for tuning in TILES]
    for kv in STORED:
        cases += [(LLAMA, kv, tuning, None) for tuning in PIECES] + [(LLAMA, kv, None, tuning) for tuning in TILES]
    for shape, kv, pieces, tiles in cases:
        sharing, scaled = shape.heads // shape.kv_heads, {"bf16": 0, "i8": 2}.get(kv, 1)
        pointers = dict(q="*bf16", kv=f"*{kv}", out="*bf16", table="*i32") | ([{}, dict(scales="*fp32"), dict(scales="*fp16")][scaled])
        common = dict(
            D=shape.head_dim, D_PAD=shape.head_dim, BLOCK_TOKENS=BLOCK_TOKENS, SHARING=sharing, WINDOWED=False, SOFTCAPPED=False,
            SCALED=scaled, PRECISION="tf32",
        ) | ({} if scaled else dict(scales=None))  # fmt: skip
        if pieces is not None:
            cost = compile_for(
                attend_pieces, pointers | dict(pieces="*i32", shares="*i32", partial="*fp32", stats="*fp32", arrivals="*i32") | numbers,
                common | dict(TOKENS=1, ROWS=sharing, M=16, BLOCK_N=pieces.block_n, PDL=True),
                num_warps=pieces.num_warps, num_stages=pieces.num_stages,
            )  # fmt: skip
            print(f"pieces, {sharing} heads, {kv}, {label(pieces)}: {cost}", flush=True)
        if tiles is not None:
            cost = compile_for(
                attend_tiles, pointers | dict(tiles="*i32") | numbers,
                common | dict(BLOCK_Q=tiles.block_m // sharing, M=tiles.block_m, BLOCK_N=tiles.block_n),
                num_warps=tiles.num_warps, num_stages=tiles.num_stages,
            )  # fmt: skip
            print(f"tiles, {sharing} heads, {kv}, {label(tiles)}: {cost}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        return compile_all()
    if args.warm:
        return warm(*map(int, args.warm.split("/")))
    report = Report()
    if args.interpret:
        from tests.interpreter import interpret

        interpret()
        MODELS.update(llama=AttentionShape(4, 1, 16, 0.25), qwen=AttentionShape(2, 1, 16, 0.25))
        print(check(report, torch.zeros(2**14, dtype=torch.float16), PIECES[:1], TILES[-3:-2], tiny=True))
        return None
    try:
        measure(report)
    finally:
        report.save()
        table(report)
        print(f"{report.since_s():.0f} s in all")
    return None


if __name__ == "__main__":
    main()
