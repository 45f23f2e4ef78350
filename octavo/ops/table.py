"""Tuned choices by operation, device and shape, and what to do with a shape that nobody tuned. No torch here.

The rows of a device are printed by `bench/gpu/skinny.py --table FILE` from what the same script measured there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OneRow:
    """How a product of one row is cut (`octavo/ops/triton/one_row.py`)."""

    block_n: int  # weight rows of a group, of each half with a gate
    warps: int = 8
    per_sm: int = 0  # programs a multiprocessor, each taking several groups; 0: one program a group


@dataclass(frozen=True)
class Skinny:
    """How a product of few rows is cut (`octavo/ops/triton/skinny.py`).

    `block_m` 1 is for one row alone; `swap` gives the tensor cores the weight as their left operand.
    """

    block_m: int
    block_n: int
    block_k: int
    split: int = 1  # programs that share the sum over K
    warps: int = 4
    stages: int = 3  # tiles in flight in shared memory; 1: registers only
    unroll: int = 1
    swap: bool = False


@dataclass(frozen=True)
class Wide:
    """How a product of some hundred rows is cut (`octavo/ops/triton/wide.py`)."""

    block_m: int
    block_n: int  # weight rows, of each half with a gate
    block_k: int
    warps: int = 4
    stages: int = 4


@dataclass(frozen=True)
class Grouped:
    """How products of tokens with their experts' weights are cut (`octavo/ops/triton/grouped.py`).

    `block_m` 1 takes each pair of a token and an expert by itself and whole rows of weights (`block_k` is not looked at); `swap` gives the
    tensor cores the weight as their left operand.
    """

    block_m: int
    block_n: int  # weight rows, of each half with a gate
    block_k: int = 0
    warps: int = 4
    stages: int = 3
    swap: bool = False


Key = tuple[str, int, int, int]  # form, at most so many rows, out features of the weight, in features

BUCKETS = (1, 8, 16, 64, 128, 256)  # rows
WAY_BYTES = 64
WIDE_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # rows, of products that the library does

Cut = OneRow | Skinny | Wide

TUNED: dict[str, dict[Key, Cut | None]] = {  # by device; None: the library's product with separate kernels around it
    "NVIDIA H200": {
        ("norm+linear", 1, 6144, 4096): OneRow(4, per_sm=2),
        ("norm+linear", 8, 6144, 4096): Skinny(16, 64, 256, stages=4, swap=True),
        ("norm+linear", 16, 6144, 4096): Skinny(16, 64, 256, stages=4, swap=True),
        ("norm+linear", 64, 6144, 4096): None,
        ("linear+add", 1, 4096, 4096): OneRow(4, per_sm=2),
        ("linear+add", 8, 4096, 4096): Skinny(16, 64, 128, stages=6, swap=True),
        ("linear+add", 16, 4096, 4096): Skinny(16, 64, 128, stages=6, swap=True),
        ("linear+add", 64, 4096, 4096): None,
        ("norm+linear+gate", 1, 28672, 4096): OneRow(1, warps=4),
        ("norm+linear+gate", 8, 28672, 4096): Skinny(16, 64, 128, stages=4, swap=True),
        ("norm+linear+gate", 16, 28672, 4096): Skinny(16, 64, 128, stages=4, swap=True),
        ("norm+linear+gate", 64, 28672, 4096): None,
        ("linear+add", 1, 4096, 14336): OneRow(1),
        ("linear+add", 8, 4096, 14336): Skinny(16, 64, 128, split=4, stages=4, swap=True),
        ("linear+add", 16, 4096, 14336): Skinny(16, 64, 128, split=4, stages=4, swap=True),
        ("linear+add", 64, 4096, 14336): None,
        ("linear", 1, 128256, 4096): OneRow(8),
        ("linear", 8, 128256, 4096): Skinny(16, 64, 128, stages=4, swap=True),
        ("linear", 16, 128256, 4096): Skinny(16, 64, 128, stages=4, swap=True),
        ("linear", 64, 128256, 4096): Skinny(64, 128, 64, stages=4),
        ("linear", 1, 6144, 4096): OneRow(4, per_sm=2),
        ("linear", 8, 6144, 4096): Skinny(16, 16, 512, warps=2),
        ("linear", 16, 6144, 4096): Skinny(16, 16, 512, warps=2),
        ("linear", 64, 6144, 4096): None,
        ("linear+gate", 1, 28672, 4096): OneRow(2),
        ("linear+gate", 8, 28672, 4096): Skinny(16, 32, 128, stages=4, swap=True),
        ("linear+gate", 16, 28672, 4096): Skinny(16, 32, 128, stages=4, swap=True),
        ("linear+gate", 64, 28672, 4096): Skinny(64, 64, 64, stages=6),
        ("norm+linear", 1, 4096, 1024): OneRow(8, warps=4),
        ("norm+linear", 8, 4096, 1024): Skinny(16, 64, 256, swap=True),
        ("norm+linear", 16, 4096, 1024): Skinny(16, 64, 256, swap=True),
        ("norm+linear", 64, 4096, 1024): None,
        ("linear", 64, 4096, 1024): Wide(64, 32, 256),
        ("linear", 128, 4096, 1024): Wide(64, 64, 128),
        ("linear", 256, 4096, 1024): Wide(128, 64, 128),
        ("linear+add", 1, 1024, 2048): OneRow(2),
        ("linear+add", 8, 1024, 2048): Skinny(16, 64, 256, split=4, swap=True),
        ("linear+add", 16, 1024, 2048): Skinny(16, 64, 256, split=4, swap=True),
        ("linear+add", 64, 1024, 2048): Wide(64, 16, 256),
        ("linear+add", 128, 1024, 2048): Wide(64, 16, 256),
        ("linear+add", 256, 1024, 2048): Wide(64, 32, 256),
        ("norm+linear+gate", 1, 6144, 1024): OneRow(2, warps=2),
        ("norm+linear+gate", 8, 6144, 1024): Skinny(16, 32, 256, stages=4, swap=True),
        ("norm+linear+gate", 16, 6144, 1024): Skinny(16, 32, 256, stages=4, swap=True),
        ("norm+linear+gate", 64, 6144, 1024): None,
        ("linear+add", 1, 1024, 3072): OneRow(1, warps=4),
        ("linear+add", 8, 1024, 3072): Skinny(16, 64, 256, split=4, swap=True),
        ("linear+add", 16, 1024, 3072): Skinny(16, 64, 256, split=4, swap=True),
        ("linear+add", 64, 1024, 3072): Wide(64, 16, 256),
        ("linear+add", 128, 1024, 3072): Wide(64, 16, 256),
        ("linear+add", 256, 1024, 3072): Wide(64, 32, 256),
        ("linear", 1, 151936, 1024): OneRow(4, warps=2),
        ("linear", 8, 151936, 1024): Skinny(16, 64, 128, stages=4, swap=True),
        ("linear", 16, 151936, 1024): Skinny(16, 64, 128, stages=4, swap=True),
        ("linear", 64, 151936, 1024): Skinny(64, 64, 64, stages=6),
        ("linear+gate", 1, 6144, 1024): OneRow(2, warps=2),
        ("linear+gate", 8, 6144, 1024): Skinny(16, 32, 128, stages=6, swap=True),
        ("linear+gate", 16, 6144, 1024): Skinny(16, 32, 128, stages=6, swap=True),
        ("linear+gate", 64, 6144, 1024): Wide(64, 32, 128),
        ("linear+gate", 128, 6144, 1024): Wide(128, 32, 128, stages=3),
    },
}


# By device, cuBLASLt's version and dtype: the way for (at most so many rows, out features, in features), where another than the library's
# first choice is faster, without the zeros at its end.
WAYS: dict[tuple[str, int, str], dict[tuple[int, int, int], str]] = {
    ("NVIDIA H200", 130100, "torch.bfloat16"): {
        (2048, 6144, 4096): "42000000170000002300000001000000000000000000000004000000000003000100000034fc01000e0000000e0000000e000e0044",
        (4096, 6144, 4096): "42000000c50000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (8192, 6144, 4096): "42000000c90000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (128, 4096, 4096): "420000001b0000002300000001000000000000000000000002000000000007000100000034fc01000e0000000e0000000e000e0044",
        (16384, 4096, 4096): "42000000180000002300000001000000000000000000000007000000000005000100000034fc01000e0000000e0000000e000e0044",
        (64, 28672, 4096): "42000000a40000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (128, 28672, 4096): "42000000a50000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (256, 28672, 4096): "42000000a50000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (1024, 28672, 4096): "42000000140000002300000001000000000000000000000001000000000003000100000034fc01000e0000000e0000000e000e0044",
        (2048, 28672, 4096): "42000000c50000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (4096, 28672, 4096): "42000000c90000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (8192, 28672, 4096): "42000000c50000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (16384, 28672, 4096): "42000000c90000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (16384, 4096, 14336): "420000001d0000002300000001000000000000000000000001000000000003000100000034fc01000e0000000e0000000e000e0044",
        (64, 4096, 1024): "420000000c0000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (4096, 4096, 1024): "42000000c90000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (8192, 4096, 1024): "420000001d0000002300000001000000000000000000000001000000000003000100000034fc01000e0000000e0000000e000e0044",
        (16384, 4096, 1024): "42000000180000002300000001000000000000000000000007000000000005000100000034fc01000e0000000e0000000e000e0044",
        (128, 1024, 2048): "420000002f0000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (256, 1024, 2048): "420000000d0000002300000001000000000000000000000003000000000005000100000034fc01000e0000000e0000000e000e0044",
        (1024, 1024, 2048): "42000000110000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (16384, 1024, 2048): "42000000140000002300000001000000000000000000000001000000000003000100000034fc01000e0000000e0000000e000e0044",
        (4096, 6144, 1024): "42000000c90000002300000001000000000000000000000002000000000005000100000034fc01000e0000000e0000000e000e0044",
        (256, 1024, 3072): "420000000c0000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
        (1024, 1024, 3072): "42000000110000002300000001000000000000000000000000000000000003000100000034fc01000e0000000e0000000e000e0044",
    },
}


def library_way(device: str, version: int, dtype: str, rows: int, n: int, k: int) -> bytes | None:
    """How cuBLASLt is to do a product with a weight [n, k]; None: as it likes."""
    bucket = next((bucket for bucket in WIDE_BUCKETS if rows <= bucket), WIDE_BUCKETS[-1])
    way = WAYS.get((device, version, dtype), {}).get((bucket, n, k))
    return None if way is None else bytes.fromhex(way).ljust(WAY_BYTES, b"\0")


def form(norm: bool, gate: bool, add: bool) -> str:
    """What is around a product, as keys name it."""
    return ("norm+" if norm else "") + "linear" + ("+gate" if gate else "") + ("+add" if add else "")


def product_key(form: str, rows: int, n: int, k: int) -> Key | None:
    """What the cut of a product with a weight [n, k] is kept under; None where rows are too many for any."""
    bucket = next((bucket for bucket in BUCKETS if rows <= bucket), None)
    return None if bucket is None else (form, bucket, n, k)


def product_cut(device: str, form: str, rows: int, n: int, k: int, num_sms: int) -> Cut | None:
    """The cut for a product with a weight [n, k] of two bytes an element; None: leave it to the library."""
    key = product_key(form, rows, n, k)
    if key is None:
        return None
    tuned = TUNED.get(device, {})
    return tuned[key] if key in tuned else _untuned(*key, num_sms)


def _untuned(form: str, bucket: int, n: int, k: int, num_sms: int) -> Cut | None:
    """Programs enough to keep every multiprocessor's loads in flight, tiles that fit the shared memory of any card from sm_80 up."""
    if k % 64 or bucket > 16:
        return None
    if bucket == 1:
        block_n = 4 if n >= 16 * num_sms else 2
        block_k = min(1024, 1 << (k.bit_length() - 1))
        return Skinny(1, block_n, block_k, warps=max(1, block_k // 256), stages=1, unroll=min(4, max(1, k // block_k)))
    programs = n // 32
    whole = "norm" in form or "gate" in form  # sums that may not be shared
    split = 1 if whole or programs >= 2 * num_sms else 2 if programs >= num_sms else 4
    return Skinny(16, 32, 128, split=split, warps=4, stages=4)


GroupedKey = tuple[str, int, int, int]  # form, block_m, out features of each expert's weight, in features

FEW_TOKENS = 4  # up to which pairs are taken one by one: two of them seldom go to one expert
TUNED_ROWS: dict[str, tuple[tuple[float, int], ...]] = {  # by device: (at most so many pairs an expert, rows of a tile), ascending
    "NVIDIA H200": ((0.5, 16), (1.0, 16), (2.0, 16), (4.0, 16), (8.0, 16), (16.0, 32), (32.0, 64), (64.0, 128), (512.0, 128)),
}
ROWS: tuple[tuple[float, int], ...] = ((10, 16), (24, 32), (72, 64))  # where nobody tuned; 128 beyond
MOST_ROWS = 128
TUNED_GROUPED: dict[str, dict[GroupedKey, Grouped]] = {  # by device
    "NVIDIA H200": {
        ("linear+gate", 1, 1536, 2048): Grouped(block_m=1, block_n=4),
        ("linear+gate", 16, 1536, 2048): Grouped(block_m=16, block_n=64, block_k=128, stages=4, swap=True),
        ("linear+gate", 32, 1536, 2048): Grouped(block_m=32, block_n=64, block_k=128),
        ("linear+gate", 64, 1536, 2048): Grouped(block_m=64, block_n=64, block_k=64, stages=4),
        ("linear+gate", 128, 1536, 2048): Grouped(block_m=128, block_n=128, block_k=64, warps=8, stages=4),
        ("linear", 1, 2048, 768): Grouped(block_m=1, block_n=2),
        ("linear", 16, 2048, 768): Grouped(block_m=16, block_n=128, block_k=128, warps=8, swap=True),
        ("linear", 32, 2048, 768): Grouped(block_m=32, block_n=128, block_k=64, stages=4, swap=True),
        ("linear", 64, 2048, 768): Grouped(block_m=64, block_n=128, block_k=64),
        ("linear", 128, 2048, 768): Grouped(block_m=128, block_n=256, block_k=64, warps=8),
    },
}


def grouped_rows(device: str, num_tokens: int, per_token: int, num_experts: int) -> int:
    """Rows of a tile, one number for all products of a layer; 1: pairs one by one."""
    if num_tokens <= FEW_TOKENS:
        return 1
    pairs = num_tokens * per_token / num_experts
    return next((rows for most, rows in TUNED_ROWS.get(device, ROWS) if pairs <= most), MOST_ROWS)


def grouped_cut(device: str, form: str, block_m: int, n: int, k: int, element_bytes: int = 2) -> Grouped:
    """The cut for products of tiles of `block_m` rows with weights [n, k]; `form` as of a product without experts."""
    tuned = TUNED_GROUPED.get(device, {}).get((form, block_m, n, k))
    if tuned is not None and element_bytes == 2:
        return tuned
    halves = 2 if "gate" in form else 1
    if block_m == 1:
        return Grouped(1, 4, warps=8 if k > 512 else 4)
    narrow = 2 if element_bytes > 2 else 1
    if block_m <= 32:
        return Grouped(block_m, 64, 128 // narrow, warps=4, stages=4 // narrow, swap=True)
    return Grouped(block_m, 128 // halves, 64 // narrow, warps=4 if block_m == 64 else 8, stages=4 // narrow)
