"""What compressed keys and values cost in quality: the perplexity of a text by KV format, against the format of the activations.

python -m bench.kv_quality [--tokens 4096] [--window 512] [--device cpu] [--text FILE]

"scaled" gives each layer the scales that a calibrated checkpoint would bring (k_scale, v_scale): of several between one and two times
its largest magnitude over the format's, the ones with the least error over a window of text after the measured ones. A part of K's
error that is the same for all tokens of a head does not count, since attention does not see it.

The text is cut into windows that are read each by itself, from an empty context, in steps of half a window.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.context import ForwardContext
from octavo.core.plan import Admission, Plan, Slice
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.ops.kv_format import LARGEST, compressed, kv_dtype, restored
from octavo.plan.memory import kv_bytes_per_token
from octavo.types import SamplingParams
from octavo.worker.build import build_runner
from octavo.worker.runner import Runner

TEXT = Path("/usr/share/common-licenses/GPL-3")
GREEDY = SamplingParams(temperature=0.0)
NUM_CANDIDATES = 16  # scales tried for each of K and V of a layer


def loss(runner: Runner, windows: list[tuple[int, ...]]) -> float:
    """Mean negative log-likelihood of each window's tokens from the second on."""
    block_tokens = runner.layout.block_tokens
    total = count = 0
    for number, window in enumerate(windows):
        blocks = tuple(range(-(-len(window) // block_tokens)))
        admitted = (Admission(0, number + 1, GREEDY, 0, window, len(window), 0, (blocks,) * len(runner.layout.groups)),)
        half = len(window) // 2
        logits = [
            step(
                runner,
                Plan(0, (Slice(0, number + 1, half, 0, False, window[:half]),), admitted, retired=(0,) if 0 in runner.rows.held else ()),
            )
        ]
        rest = Slice(0, number + 1, len(window) - half, 0, True, window[half:])
        runner.rows.computed[0] = half
        logits.append(step(runner, Plan(0, (rest,))))
        targets = torch.tensor(window[1:], device=logits[0].device)
        total += float(torch.nn.functional.cross_entropy(torch.cat(logits)[:-1].float(), targets, reduction="sum"))
        count += len(window) - 1
    return total / count


@torch.inference_mode()
def step(runner: Runner, plan: Plan) -> torch.Tensor:
    """The logits [T, vocab] of a plan's tokens."""
    runner.rows.apply(plan)
    batch = runner.batches.build(plan, runner.rows)
    tables = zip(runner.layout.groups, runner.rows.block_tables)
    plans = tuple(runner.attention.plan(batch, number, table, group.block_tokens) for number, (group, table) in enumerate(tables))
    return runner.model.logits(runner.model(ForwardContext(batch, plans)))


def fitting_scales(runner: Runner, num_tokens: int, name: str) -> list[torch.Tensor]:
    """The scales [2] of each layer for what the first tokens left in its memory."""
    dtype, layers = kv_dtype(name), runner.model.attention_layers  # pyright: ignore[reportAttributeAccessIssue]
    return [fitting(layer.kv.transpose(0, 1).flatten(1, 2)[:, :num_tokens].float(), dtype) for layer in layers]


def fitting(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scales [2] that suit values [2, tokens, heads, head_dim] best."""
    least = values.abs().amax((1, 2, 3)) / LARGEST[dtype]  # [2]
    candidates = [least * 2 ** (i / NUM_CANDIDATES) for i in range(NUM_CANDIDATES)]
    errors: list[torch.Tensor] = []
    for scales in candidates:
        stored, _ = compressed(values.transpose(0, 1), dtype, scales)
        error = restored(stored.transpose(0, 1), scales) - values
        errors.append(torch.stack((error[0].var(0).sum(), error[1].square().mean(0).sum())))
    best = torch.stack(errors).argmin(0)  # [2]
    return torch.stack(candidates).gather(0, best[None])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print(f"{args.tokens} tokens of {args.text.name} in windows of {args.window}, {args.model}")
    rows: list[dict[str, Any]] = []
    for row in perplexities(args.model, args.text, args.tokens, args.window, args.device):
        rows.append(row)
        scaled = " scaled" if row["scaled"] else ""
        print(f"{row['kv_dtype'] + scaled:16} perplexity {row['perplexity']:8.4f}  {row['growth']:+.2%}", flush=True)
    print(json.dumps(rows))


def perplexities(model: str, text: Path, num_tokens: int, window: int, device: str = "cpu") -> Iterator[dict[str, Any]]:
    """By KV format, that of the activations first."""
    checkpoint = open_checkpoint(model)
    tokens = checkpoint.tokenizer().encode(text.read_text(), False)
    tokens, other = tokens[:num_tokens], tuple(tokens[num_tokens:][:window])
    windows = [tuple(tokens[i : i + window]) for i in range(0, len(tokens) - 1, window)]
    architecture = Architecture.from_config(checkpoint.config)
    dtype = "float32" if device == "cpu" else "bfloat16"
    base = Resolved(device=device, dtype=dtype, max_model_len=window, max_num_seqs=2, max_num_batched_tokens=window)
    plain, runner = measure(base, architecture, checkpoint, dtype, windows)
    loss(runner, [other])
    scales = fitting_scales(runner, len(other), "fp8_e4m3")
    for name, own in ((dtype, None), ("int8", None), ("fp8_e4m3", None), ("fp8_e4m3", scales), ("fp8_e5m2", None)):
        found = plain if name == dtype else measure(base, architecture, checkpoint, name, windows, own)[0]
        yield {"kv_dtype": name, "scaled": own is not None, "perplexity": math.exp(found), "growth": math.expm1(found - plain)}


def measure(
    base: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    name: str,
    windows: list[tuple[int, ...]],
    scales: list[torch.Tensor] | None = None,
) -> tuple[float, Runner]:
    """Loss with this KV format, and the runner, which still holds what the last window left."""
    blocks = -(-base.max_model_len // base.block_size) * 4
    kv_bytes = blocks * base.block_size * kv_bytes_per_token(architecture, name)
    runner = build_runner(replace(base, kv_dtype=name, kv_bytes=kv_bytes), architecture, checkpoint, lambda stage: nullcontext())
    for layer, own in zip(runner.model.attention_layers, scales or ()):  # pyright: ignore[reportAttributeAccessIssue]
        layer.kv_scales.copy_(own)
    return loss(runner, windows), runner


if __name__ == "__main__":
    main()
