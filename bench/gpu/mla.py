"""Checks and times the decode kernel for latents (512 + 64, bf16) against its floor, for 128 heads (one GPU) and 16 (tensor parallel 8).

    OUT=/tmp/out python bench/gpu/mla.py     writes mla.json there

`--dry` runs one small case in Triton's interpreter, `--compile` says what each tuning costs on sm_90, without a card.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

DRY = "--dry" in sys.argv
sys.path.insert(0, str(Path(__file__).parents[2]))
if DRY:
    from tests.interpreter import interpret

    interpret()

import torch  # noqa: E402

from bench.gpu.timing import graph_time  # noqa: E402
from octavo.attention.backend import AttentionShape  # noqa: E402
from octavo.attention.triton_latent import LatentTuning, TritonLatent  # noqa: E402
from octavo.context import Batch  # noqa: E402

BANDWIDTH, FLOPS = 4.24e12, 764e12  # as measured on an H200
RANK, ROTATED, BLOCK_TOKENS = (32, 16, 8) if DRY else (512, 64, 16)
DEVICE = "cpu" if DRY else "cuda"
DTYPE = torch.float16 if DRY else torch.bfloat16
CASES = [(2, 40, 16)] if DRY else [(seqs, context, heads) for heads in (16, 128) for context in (512, 4096) for seqs in (1, 64, 256)]
WIDE = {  # of 128 heads
    "rule": None,
    "not apart": LatentTuning(apart=False),
    "2 stages": LatentTuning(num_stages=2),
    "16 keys": LatentTuning(block_n=16, num_stages=4),
    "64 keys, not apart, 2 stages": LatentTuning(block_n=64, num_stages=2, apart=False),
    "32 heads": LatentTuning(heads=32),
}
NARROW = {  # of 16
    "rule": None,
    "not apart": LatentTuning(heads=16, programs=3, num_warps=4, num_stages=2, apart=False),
    "3 stages": LatentTuning(heads=16, programs=2, num_warps=4, num_stages=3),
    "16 keys, 3 stages": LatentTuning(heads=16, programs=3, num_warps=4, block_n=16, num_stages=3),
    "64 keys, 8 warps": LatentTuning(heads=16, programs=2, num_warps=8, block_n=64, num_stages=2),
}


class Case:
    """Decoding sequences of one context length: several layers' memory, so that no layer finds its own in the cache of the device."""

    def __init__(self, seqs: int, context: int, heads: int) -> None:
        self.width = RANK + ROTATED
        blocks = -(-context // BLOCK_TOKENS)
        self.bytes = seqs * context * self.width * 2
        self.operations = 2 * seqs * context * heads * (2 * RANK + ROTATED)
        layers = 1 if DRY else max(1, min(8, int(2e9 // self.bytes), -(-200_000_000 // self.bytes)))
        self.shape = AttentionShape(heads, 1, self.width, self.width**-0.5, value_dim=RANK)
        self.table = torch.randperm(seqs * blocks, device=DEVICE).view(seqs, blocks).int()
        self.kv = [torch.randn(seqs * blocks, 1, BLOCK_TOKENS, 1, self.width, device=DEVICE, dtype=DTYPE) for _ in range(layers)]
        self.q = torch.randn(seqs, heads, self.width, device=DEVICE, dtype=DTYPE)
        self.lengths = torch.full((seqs,), context, dtype=torch.int32, device=DEVICE)
        index = torch.arange(seqs + 1, dtype=torch.int32, device=DEVICE)
        long = index[:seqs].long()
        self.batch = Batch(
            tokens=long, positions=self.lengths.long() - 1, starts=index, lengths=self.lengths, rows=index[:seqs], slots=long[None],
            sample_at=long, sample_rows=long, num_tokens=seqs, num_slices=seqs, max_count=1, max_length=context,
        )  # fmt: skip

    def run(self, backend: TritonLatent, layers: int | None = None) -> torch.Tensor:
        plan = backend.plan(self.batch, 0, self.table, BLOCK_TOKENS)
        outputs = [backend.run(plan, self.q, kv, self.shape) for kv in self.kv[:layers]]
        return outputs[0]

    def error(self, backend: TritonLatent) -> float:
        """The largest distance from float32 attention, of a few sequences."""
        got, worst = self.run(backend, 1).float(), 0.0
        for seq in range(min(3, len(self.q))):
            keys = self.kv[0][self.table[seq].long()].flatten(0, 3)[: int(self.lengths[seq])].float()  # [context, width]
            weights = (self.q[seq].float() @ keys.T * self.shape.scale).softmax(-1)
            worst = max(worst, (got[seq] - weights @ keys[:, :RANK]).abs().max().item())
        return worst

    def floor_s(self) -> float:
        return max(self.bytes / BANDWIDTH, self.operations / FLOPS)


def measure(seqs: int, context: int, heads: int) -> list[dict[str, Any]]:
    case, found = Case(seqs, context, heads), []
    side = None if DRY else torch.cuda.Stream()
    for name, tuning in (NARROW if heads <= 16 else WIDE).items():
        row: dict[str, Any] = {"seqs": seqs, "context": context, "heads": heads, "tuning": name, "floor_us": 1e6 * case.floor_s()}
        try:
            backend = TritonLatent(tuning)
            row["error"] = case.error(backend)
            if not DRY:
                row["us"] = 1e6 * graph_time(lambda b=backend: case.run(b), side) / len(case.kv)
                row["share"] = row["floor_us"] / row["us"]
        except Exception:
            row["failed"] = traceback.format_exc()[-400:]
        found.append(row)
    return found


def compile_all() -> None:
    from bench.gpu.compiled import compile_for
    from octavo.attention.triton_latent import tuning_for
    from octavo.attention.triton_latent_kernels import attend_latent_pieces

    pointers = {name: "*bf16" for name in ("q", "kv", "out")} | {name: "*i32" for name in ("table", "pieces", "arrivals")}
    types = pointers | {"partial": "*fp32", "stats": "*fp32", "q_stride": "i32:16", "table_stride": "i32", "block_stride": "i32:16"}
    types |= {"token_stride": "i32:16", "scale": "fp32"}
    types = {name: types[name] for name in attend_latent_pieces.arg_names if name in types}
    for heads, tunings in ((128, WIDE), (16, NARROW)):
        for name, given in tunings.items():
            t = given or tuning_for(heads, 2, 232_448)
            fixed = dict(SHARING=t.heads, TOKENS=1, ROWS=t.heads, M=t.heads, RANK=512, ROT=64, RANK_PAD=512, ROT_PAD=64)
            fixed |= dict(BLOCK_TOKENS=16, BLOCK_N=t.block_n, BLOCK_C=64, PRECISION="tf32", APART=t.apart, PDL=True)
            cost = compile_for(attend_latent_pieces, types, fixed, num_warps=t.num_warps, num_stages=t.num_stages)
            print(f"{heads} heads, {name}: {cost}", flush=True)


def main() -> None:
    if "--compile" in sys.argv:
        return compile_all()
    torch.manual_seed(0)
    found = [row for case in CASES for row in measure(*case)]
    folder = Path(os.environ.get("OUT", "."))
    if not DRY:
        (folder / "mla.json").write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": found}, indent=1))
    for row in found:
        timed = f", {row['us']:8.1f} us, {row['share']:4.0%} of the floor" if "us" in row else ""
        said = row.get("failed") or f"error {row['error']:.4f}{timed}"
        print(f"{row['heads']:4} heads {row['seqs']:4} x {row['context']:5} {row['tuning']:28} floor {row['floor_us']:8.1f} us: {said}")


if __name__ == "__main__":
    main()
