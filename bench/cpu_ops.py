"""Times the C operations on CPU against torch at a model's shapes, in turn, and prints one JSON line an operation.

    python bench/cpu_ops.py [--threads 2] [--dtype bfloat16] [--rows 1 8 32 512] [--variant avx2] [--ways] [--output-json FILE]

Weights are rotated through so many copies that no cache holds them. Times are medians in microseconds. `--ways` measures only products,
each way that the machine has: vectors, AMX's tiles, and torch's, which takes oneDNN and would need plain weights besides the laid-out ones.
The table in `octavo/ops/native/ways.py` is made from that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo import env
from octavo.attention.backend import AttentionShape
from octavo.attention.cpu import NativeAttention
from octavo.attention.reference import attend
from octavo.context import Batch
from octavo.host.cores import usable_cores
from octavo.host.huge_pages import move_later
from octavo.ops.gated import silu_mul
from octavo.ops.linear import linear
from octavo.ops.native.binding import Native
from octavo.ops.native.twins import Twins
from octavo.ops.native.ways import TileRows
from octavo.ops.packed_linear import Packed
from octavo.ops.rms_norm import rms_norm

PRODUCTS = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}  # SmolLM2-135M
CACHES_BYTES = 96 << 20
BLOCK_TOKENS = 16


def medians(*calls: Callable[[int], object], seconds: float = 0.6) -> list[float]:
    """Median microseconds of each, called with a running number, in turns of a few calls with a pause: torch's threads spin after a call
    for about a millisecond, which would count against the other side."""
    times: list[list[float]] = [[] for _ in calls]
    end, number = time.perf_counter() + seconds, 0
    while number < 8 or time.perf_counter() < end:
        for call, taken in zip(calls, times):
            time.sleep(0.003)
            for i in range(number, number + 8):
                begin = time.perf_counter()
                call(i)
                taken.append((time.perf_counter() - begin) * 1e6)
                if taken[-1] > seconds * 1e5:
                    break
        number += 8
    return [statistics.median(taken) for taken in times]


def report(op: str, rows: int, took: Sequence[float], num_bytes: int, num_flops: int) -> None:
    line = {"op": op, "rows": rows, "us": round(took[0], 1), "torch_us": round(took[1], 1), "times_torch": round(took[1] / took[0], 2)}
    print(json.dumps(line | {"gb_s": round(num_bytes / took[0] / 1e3, 1), "gflop_s": round(num_flops / took[0] / 1e3, 1)}), flush=True)


def product(twins: Twins, name: str, plain: list[torch.Tensor], packed: list[torch.Tensor], rows: int) -> None:
    n, k = plain[0].shape
    x = torch.randn(rows, k).to(plain[0].dtype)
    took = medians(lambda i: twins.linear(x, packed[i % len(packed)], None), lambda i: linear(x, plain[i % len(plain)], None))
    report(name, rows, took, plain[0].nbytes, 2 * rows * n * k)


def packed_product(twins: Twins, name: str, bits: int, plain: list[torch.Tensor], rows: int) -> None:
    """4 bits with offsets (Q4_1), or 8 bits, against torch's product with plain weights."""
    n, k = plain[0].shape
    packed, x = some_packed(n, k, bits), torch.randn(rows, k).to(plain[0].dtype)
    took = medians(lambda i: twins.packed_linear(x, packed[i % len(packed)], None), lambda i: linear(x, plain[i % len(plain)], None))
    report(f"{name}_{bits}bit", rows, took, packed[0].codes.nbytes + packed[0].scales.nbytes, 2 * rows * n * k)


def products(twins: Twins, dtype: torch.dtype, all_rows: list[int]) -> None:
    for name, (n, k) in PRODUCTS.items():
        plain = [torch.randn(n, k).to(dtype) for _ in range(max(2, CACHES_BYTES // (n * k * dtype.itemsize)))]
        packed = [laid_out(twins, weight) for weight in plain]
        for rows in all_rows:
            product(twins, name, plain, packed, rows)
            packed_product(twins, name, 4, plain, rows)
            packed_product(twins, name, 8, plain, rows)


def laid_out(twins: Twins, weight: torch.Tensor) -> torch.Tensor:
    """A copy in panels and on huge pages, as a model has it some time after its start."""
    panels = twins.pack_linear(weight.clone())
    move_later([(panels.data_ptr(), panels.nbytes)], panels, delay_s=0.0).join()
    return panels


def some_packed(n: int, k: int, bits: int) -> list[Packed]:
    shape, numbers = (n // 16, k // 32, bits, 16, 4), 2 if bits == 4 else 1
    many = max(2, CACHES_BYTES // (n * k * bits // 8))
    return [Packed(torch.randint(0, 256, shape).byte(), torch.randn(n // 16, k // 32, numbers, 16).half(), n) for _ in range(many)]


@dataclass(frozen=True)
class Copies:
    """One product's weights in every form."""

    plain: list[torch.Tensor]
    panels: list[torch.Tensor]
    packed: dict[int, list[Packed]]  # by bits

    @classmethod
    def random(cls, twins: Twins, n: int, k: int) -> Copies:
        plain = [torch.randn(n, k).bfloat16() for _ in range(max(2, CACHES_BYTES // (n * k * 2)))]
        return cls(plain, [laid_out(twins, weight) for weight in plain], {bits: some_packed(n, k, bits) for bits in (4, 8)})

    def ways(self, x: torch.Tensor, twins: dict[str, Twins]) -> dict[str, Callable[[int], object]]:
        def packed(twin: Twins, some: list[Packed]) -> Callable[[int], object]:
            return lambda i: twin.packed_linear(x, some[i % len(some)], None)

        def panels(twin: Twins) -> Callable[[int], object]:
            return lambda i: twin.linear(x, self.panels[i % len(self.panels)], None)

        return {
            "torch": lambda i: linear(x, self.plain[i % len(self.plain)], None),
            **{f"bf16_{way}": panels(twin) for way, twin in twins.items()},
            **{f"{bits}bit_{way}": packed(twin, some) for bits, some in self.packed.items() for way, twin in twins.items()},
        }


def ways(native: Native, all_rows: list[int]) -> Iterator[dict[str, object]]:
    """Microseconds of each way of each product, x in bfloat16."""
    kinds = {"vectors": TileRows()} | ({"tiles": TileRows(0, 0)} if native.variant == "amx" else {})
    twins = {name: Twins(native, rows) for name, rows in kinds.items()}
    for name, (n, k) in PRODUCTS.items():
        copies = Copies.random(twins["vectors"], n, k)
        for rows in all_rows:
            if rows > 64 and name == "head":  # logits are made of rows that end in a token only
                continue
            calls = copies.ways(torch.randn(rows, k).bfloat16(), twins)
            took = medians(*calls.values(), seconds=0.4)
            yield {"product": name, "n": n, "k": k, "rows": rows, "us": dict(zip(calls, (round(us, 1) for us in took)))}


def elementwise(twins: Twins, dtype: torch.dtype, rows: int) -> None:
    weight, x, packed = torch.ones(576), torch.randn(rows, 576).to(dtype), torch.randn(rows, 3072).to(dtype)
    took = medians(lambda i: twins.rms_norm(x, weight, 1e-5), lambda i: rms_norm(x, weight, 1e-5), seconds=0.2)
    report("rms_norm", rows, took, 2 * x.nbytes, 0)
    took = medians(lambda i: twins.silu_mul(packed), lambda i: silu_mul(packed), seconds=0.2)
    report("silu_mul", rows, took, 3 * packed.nbytes // 2, 0)


def attention(native: Native, dtype: torch.dtype, sequences: int, count: int, length: int) -> None:
    """`sequences` of `length` tokens of context, `count` of them new; torch takes one sequence with K and V already gathered, times all."""
    shape, backend = AttentionShape(9, 3, 64, 0.125), NativeAttention(native)
    blocks = -(-length // BLOCK_TOKENS)
    kv = torch.randn(sequences * blocks, 2, BLOCK_TOKENS, 3, 64).to(dtype)
    table = torch.randperm(len(kv)).view(sequences, blocks).int()
    none, rows = torch.empty(0, dtype=torch.int64), torch.arange(sequences, dtype=torch.int32)
    batch = Batch(
        tokens=none, positions=none, starts=torch.arange(0, sequences * count + 1, count, dtype=torch.int32),
        lengths=torch.full((sequences,), length, dtype=torch.int32), rows=rows, slots=none, sample_at=none, sample_rows=none,
        num_tokens=sequences * count, num_slices=sequences, max_count=count, max_length=length,
    )  # fmt: skip
    q, k, v = torch.randn(sequences * count, 9, 64).to(dtype), torch.randn(length, 3, 64).to(dtype), torch.randn(length, 3, 64).to(dtype)
    visible, plan = torch.ones(count, length, dtype=torch.bool).tril(length - count), backend.plan(batch, 0, table, BLOCK_TOKENS)
    took = medians(lambda i: backend.run(plan, q, kv, shape), lambda i: attend(q[:count], k, v, visible, shape))
    pairs = count * (2 * length - count + 1) // 2
    flops = sequences * pairs * shape.heads * 4 * shape.head_dim
    report(f"attention_{count}_of_{length}", sequences, (took[0], took[1] * sequences), kv.nbytes, flops)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 512])
    parser.add_argument("--variant")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--output-json", type=Path, help="with --ways: also write what was measured there")
    asked = parser.parse_args()
    native = Native(env.cache_root(), asked.threads, variant=asked.variant)
    torch.set_num_threads(asked.threads)
    dtype = getattr(torch, asked.dtype)
    head = {"variant": native.variant, "threads": asked.threads, "dtype": asked.dtype, "torch": torch.__version__}
    print(json.dumps(head), flush=True)
    if asked.ways:
        found = []
        for line in ways(native, asked.rows):
            print(json.dumps(line), flush=True)
            found.append(line)
        if asked.output_json:
            asked.output_json.write_text(json.dumps(head | {"ways": found}, indent=1) + "\n")
        return
    products(Twins(native), dtype, asked.rows)
    for rows in asked.rows:
        elementwise(Twins(native), dtype, rows)
    for sequences, count, length in ((1, 1, 512), (32, 1, 192), (1, 512, 512)):
        attention(native, dtype, sequences, count, length)


if __name__ == "__main__":
    main()
