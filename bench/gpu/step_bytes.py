"""The bytes that a decode step must move on each GPU, the time that takes at best, and the share of it that a measured step reached.

    python bench/gpu/step_bytes.py bench/models/qwen3-30b-a3b --seqs 1 64 256 --context 640 --ranks 2 [--ms 4.1 9.5 14.2]

Weights are read once, of experts those that some token goes to (tokens choose evenly; whether whole experts lie on ranks or a part of each
is the same); K and V of every context once. Between ranks go the sums after attention and after the MLP of each layer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from octavo.config.architecture import Architecture
from octavo.plan.memory import active_parameters, kv_bytes_per_token, num_parameters, one_rank

BANDWIDTH, LINK = 4.24e12, 0.45e12  # bytes/s of an H200, measured, and of its NVLink one way, as published
SIZE = 2  # bfloat16


def step_bytes(arch: Architecture, seqs: int, context: int, ranks: int) -> dict[str, float]:
    """Of one rank, in bytes."""
    hit = max((1 - (1 - layer.experts.choice.per_token / layer.experts.num) ** seqs for layer in arch.layers if layer.experts), default=1.0)
    cut = one_rank(arch, ranks)
    all_experts = num_parameters(arch) - active_parameters(arch)
    idle_share = max((1 - e.choice.per_token / e.num for layer in arch.layers if (e := layer.experts)), default=1.0)
    in_experts = all_experts / idle_share / ranks  # whole or cut, a rank has as many of their numbers
    table = cut.vocab * cut.hidden * (0 if arch.tied_embeddings else 1)  # rows of the embedding, of which few are read
    beside = num_parameters(cut) - in_experts - table
    return {
        "weights": SIZE * beside, "experts": SIZE * in_experts * hit, "kv": kv_bytes_per_token(cut, "bfloat16") * seqs * context,
        "links": SIZE * 2 * arch.num_layers * arch.hidden * seqs * 2 * (ranks - 1) / ranks,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--seqs", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=576)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--ms", type=float, nargs="*", default=[])
    asked = parser.parse_args()
    arch = Architecture.from_config(json.loads((asked.model / "config.json").read_text(encoding="utf-8")))
    for number, seqs in enumerate(asked.seqs):
        moved = step_bytes(arch, seqs, asked.context, asked.ranks)
        best_ms = 1e3 * (sum(moved[name] for name in ("weights", "experts", "kv")) / BANDWIDTH + moved["links"] / LINK)
        said = ", ".join(f"{name} {value / 1e9:.3f} GB" for name, value in moved.items())
        share = f"; measured {asked.ms[number]} ms: {best_ms / asked.ms[number]:.0%} of the limit" if number < len(asked.ms) else ""
        print(f"{seqs:4} sequences of {asked.context} tokens on {asked.ranks} GPUs: {said}: {best_ms:.3f} ms at best{share}")


if __name__ == "__main__":
    main()
