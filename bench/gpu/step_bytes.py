"""The bytes that a decode step must move on each GPU, the time that takes at best, and the share of it that a measured step reached.

    python bench/gpu/step_bytes.py bench/models/qwen3-30b-a3b --seqs 1 64 256 --context 640 --tensor 2 --data 1 [--ms 4.1 9.5 14.2]

Weights are read once, of experts those that some token goes to (tokens choose evenly; whether whole experts lie on ranks or a part of each
is the same); K and V of every context once. Between tensor ranks go the sums after attention and after the MLP of each layer; between
replicas that share experts, each layer's tokens to all and their sums back. Given a result of `octavo bench throughput`, --result takes its
lat1, dec64 and dec256, whose contexts grow from 32 or 128 tokens by 256: the average is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from octavo.bench.workloads import CASES
from octavo.config.architecture import Architecture
from octavo.plan.memory import active_parameters, kv_bytes_per_token, num_parameters, one_rank

BANDWIDTH, LINK = 4.24e12, 0.45e12  # bytes/s of an H200, measured, and of its NVLink one way, as published
SIZE = 2  # bfloat16
DECODES = ("lat1", "dec64", "dec256")  # nearly all of whose time goes to steps in which all sequences decode


def step_bytes(arch: Architecture, seqs: int, context: int, tensor: int, data: int = 1) -> dict[str, float]:
    """Of one rank, in bytes."""
    ranks = tensor * data
    hit = max((1 - (1 - layer.experts.choice.per_token / layer.experts.num) ** seqs for layer in arch.layers if layer.experts), default=1.0)
    cut = one_rank(arch, tensor)
    all_experts = num_parameters(arch) - active_parameters(arch)
    idle_share = max((1 - e.choice.per_token / e.num for layer in arch.layers if (e := layer.experts)), default=1.0)
    in_experts = all_experts / idle_share / ranks  # whole or cut, a rank has as many of their numbers
    table = cut.vocab * cut.hidden * (0 if arch.tied_embeddings else 1)  # rows of the embedding, of which few are read
    beside = num_parameters(cut) - in_experts * data - table
    kv = kv_bytes_per_token(cut, "bfloat16") * context * -(-seqs // data)
    return {
        "weights": SIZE * beside, "experts": SIZE * in_experts * hit, "kv": kv,
        "links": SIZE * arch.num_layers * arch.hidden * 2 * (2 * seqs * (tensor - 1) / tensor + seqs * (data - 1) / data),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--seqs", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=576)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--data", type=int, default=1, help="replicas that share experts")
    parser.add_argument("--ms", type=float, nargs="*", default=[])
    parser.add_argument("--result", type=Path)
    asked = parser.parse_args()
    arch = Architecture.from_config(json.loads((asked.model / "config.json").read_text(encoding="utf-8")))
    if asked.result is None:
        for number, seqs in enumerate(asked.seqs):
            show(arch, seqs, asked.context, asked.tensor, asked.data, asked.ms[number] if number < len(asked.ms) else None)
        return
    found = json.loads(asked.result.read_text(encoding="utf-8"))
    tensor = found["flags"].get("tensor_parallel_size", 1)
    data = found["flags"].get("data_parallel_size", 1)
    for name, workload in CASES.items():
        row = found["results"].get(name)
        if row and isinstance(workload.input_len, int) and isinstance(workload.output_len, int) and name in DECODES:
            context = workload.input_len + workload.output_len // 2
            show(arch, workload.num_prompts, context, tensor, data, row["seconds"] * 1e3 / workload.output_len)


def show(arch: Architecture, seqs: int, context: int, tensor: int, data: int, ms: float | None) -> None:
    moved = step_bytes(arch, seqs, context, tensor, data)
    best_ms = 1e3 * (sum(moved[name] for name in ("weights", "experts", "kv")) / BANDWIDTH + moved["links"] / LINK)
    said = ", ".join(f"{name} {value / 1e9:.3f} GB" for name, value in moved.items())
    share = f"; measured {ms:.3f} ms: {best_ms / ms:.0%} of the limit" if ms else ""
    print(f"{seqs:4} sequences of {context} tokens on {tensor * data} GPUs: {said}: {best_ms:.3f} ms at best{share}")


if __name__ == "__main__":
    main()
