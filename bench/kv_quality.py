"""What compressed keys and values cost in quality: the perplexity of a text by KV format, against the format of the activations.

python -m bench.kv_quality [--tokens 4096] [--window 512] [--device cpu] [--text FILE]

"scaled" gives each layer the scales that a calibrated checkpoint would bring (k_scale, v_scale): its largest magnitude over the format's,
rounded up to a power of two, so that values are rounded as without scales unless they were too small for the format.
The text is cut into windows that are read each by itself, from an empty context, in steps of half a window.
"""

from __future__ import annotations

import argparse
import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.context import ForwardContext
from octavo.core.plan import Admission, Plan, Slice
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.ops.kv_format import FP8, LARGEST, kv_dtype
from octavo.plan.memory import kv_bytes_per_token
from octavo.types import SamplingParams
from octavo.worker.build import build_runner
from octavo.worker.runner import Runner

TEXT = Path("/usr/share/common-licenses/GPL-3")
GREEDY = SamplingParams(temperature=0.0)


def loss(runner: Runner, windows: list[tuple[int, ...]]) -> float:
    """Mean negative log-likelihood of each window's tokens from the second on."""
    block_tokens = runner.layout.block_tokens
    total = count = 0
    for number, window in enumerate(windows):
        blocks = tuple(range(-(-len(window) // block_tokens)))
        admitted = (Admission(0, number + 1, GREEDY, 0, window, len(window), 0, (blocks,) * len(runner.layout.groups)),)
        half = len(window) // 2
        logits = [step(runner, Plan(0, (Slice(0, number + 1, half, 0, False, window[:half]),), admitted, retired=(0,) if number else ()))]
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


def magnitudes(runner: Runner) -> list[torch.Tensor]:
    """The largest magnitude of K and of V in each layer's memory, [2] each."""
    return [layer.kv.abs().amax((0, 2, 3, 4)).float() for layer in runner.model.attention_layers]  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.model)
    tokens = checkpoint.tokenizer().encode(args.text.read_text(), False)[: args.tokens]
    windows = [tuple(tokens[i : i + args.window]) for i in range(0, len(tokens) - 1, args.window)]
    architecture = Architecture.from_config(checkpoint.config)
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    base = Resolved(
        device=args.device, dtype=dtype, max_model_len=args.window, max_num_seqs=2, max_num_batched_tokens=args.window,
        attention_backend="reference" if args.device == "cpu" else "auto",
    )  # fmt: skip
    print(f"{len(tokens)} tokens of {args.text.name} in windows of {args.window}, {args.model} in {dtype}")
    rows: list[dict[str, object]] = []
    plain, peaks = measure(base, architecture, checkpoint, dtype, windows, None)
    for name, scaled in ((dtype, False), ("int8", False), ("fp8_e4m3", False), ("fp8_e4m3", True), ("fp8_e5m2", False)):
        found = plain if name == dtype else measure(base, architecture, checkpoint, name, windows, peaks if scaled else None)[0]
        growth = math.expm1(found - plain)
        rows.append({"kv_dtype": name, "scaled": scaled, "perplexity": math.exp(found), "growth": growth})
        print(f"{name + ' scaled' * scaled:16} perplexity {math.exp(found):8.4f}  {growth:+.2%}", flush=True)
    print(json.dumps(rows))


def measure(
    base: Resolved,
    architecture: Architecture,
    checkpoint: Checkpoint,
    name: str,
    windows: list[tuple[int, ...]],
    peaks: list[torch.Tensor] | None,
) -> tuple[float, list[torch.Tensor]]:
    """Loss with this KV format, its scales from `peaks` where given; and the peaks of what is in memory at the end."""
    blocks = -(-base.max_model_len // base.block_size) * 4
    kv_bytes = blocks * base.block_size * kv_bytes_per_token(architecture, name)
    runner = build_runner(replace(base, kv_dtype=name, kv_bytes=kv_bytes), architecture, checkpoint, lambda stage: nullcontext())
    if peaks is not None and name in FP8:
        for layer, peak in zip(runner.model.attention_layers, peaks):  # pyright: ignore[reportAttributeAccessIssue]
            layer.kv_scales.copy_((peak / LARGEST[kv_dtype(name)]).log2().ceil().exp2())
    found = loss(runner, windows)
    kept = magnitudes(runner) if name not in FP8 and name != "int8" else []
    runner.close()
    return found, kept


if __name__ == "__main__":
    main()
