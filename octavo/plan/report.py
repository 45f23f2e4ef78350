"""The memory plan as a page to read and as plain data. The engine prints the same page when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.plan.devices import GIB, MIB
from octavo.plan.kv import kv_kinds
from octavo.plan.memory import MemoryPlan, rank_shapes, weight_bytes

LABELS = {
    "weight_bytes": "weights",
    "activation_bytes": "activations",
    "logits_bytes": "logits beyond them",
    "row_bytes": "rows, tables, slots",
    "graph_bytes": "graphs",
    "reserve_bytes": "driver and margin",
}


def size(num_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / MIB:.1f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:.1f} KiB"


def as_table(plan: MemoryPlan, settings: Resolved) -> str:
    """One screen: where the memory goes, what fits, and why."""
    rows = [(LABELS[name], value) for name, value in asdict(plan.costs).items() if value]
    rows += [("KV cache", plan.kv_bytes), ("total", plan.budget_bytes)]
    width = max(len(label) for label, _ in rows)
    lines = [f"  {label:<{width}}  {size(value):>12}" for label, value in rows]
    lines += [
        "",
        f"  KV: {plan.kv_tokens:,} tokens of {size(plan.kv_bytes_per_token)}, in {plan.num_blocks:,} blocks of {size(plan.block_bytes)}",
        f"  fits at once: {', '.join(f'{count:,} x {length:,}' for length, count in plan.fits)} tokens",
        f"  max_model_len {settings.max_model_len:,}: {plan.max_concurrency:.2f} sequences of that length",
        f"  this layout again: --kv-cache-memory-bytes {plan.kv_bytes}",
    ]
    return "\n".join(lines)


def by_format(arch: Architecture, settings: Resolved, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a rank's weights and a token's KV take in each format, in bytes; `stored` are the formats of a .gguf file's tensors."""
    part = rank_shapes(arch, settings)
    weights = {name: weight_bytes(part, name) for name in dict.fromkeys((settings.dtype, "float32", "bfloat16"))}
    weights |= {kind: num_bytes for kind, (_, num_bytes) in stored.items()}
    kinds = [asdict(kind) for kind in kv_kinds(arch, settings)]
    return {"weights_by_format": weights, "kv_kinds": kinds}


def formats_as_lines(formats: Mapping[str, Any]) -> list[str]:
    """A line for weights, one for each kind of layer."""
    lines = [f"  weights as {', '.join(f'{name} {size(count)}' for name, count in formats['weights_by_format'].items())}"]
    for kind in formats["kv_kinds"]:
        sizes = ", ".join(f"{name} {size(count)}" for name, count in kind["bytes_per_token"].items())
        lines.append(f"  KV a token, {kind['num_layers']} layers of {kind['name']}, {kind['held']}: {sizes}")
    return lines


MEASURED = {
    "weight_bytes": "weights",
    "kv_bytes": "KV cache",
    "row_bytes": "rows, tables, slots",
    "step_bytes": "largest step",
    "used_bytes": "in use",
}


def beside(plan: MemoryPlan, measured: Mapping[str, int]) -> str:
    """What was planned and what an engine found when it had started, side by side. What a device does not tell is left out."""
    step_bytes = plan.costs.activation_bytes + plan.costs.logits_bytes
    planned = {**asdict(plan.costs), "kv_bytes": plan.kv_bytes, "step_bytes": step_bytes, "used_bytes": plan.budget_bytes}
    width = max(map(len, MEASURED.values()))
    lines = [f"  {'':<{width}}  {'planned':>12}  {'measured':>12}"]
    for name, label in MEASURED.items():
        if name in measured:
            lines.append(f"  {label:<{width}}  {size(planned[name]):>12}  {size(measured[name]):>12}")
    return "\n".join(lines)


def as_reasons(settings: Resolved) -> str:
    """One line a decision: name, value, why."""
    return "\n".join(f"  {name} = {getattr(settings, name)}: {why}" for name, why in settings.reasons.items())


def as_data(plan: MemoryPlan, settings: Resolved) -> Mapping[str, Any]:
    """The same for programs; sizes in bytes."""
    return {
        **asdict(plan.costs),
        "budget_bytes": plan.budget_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "block_bytes": plan.block_bytes,
        "num_blocks": plan.num_blocks,
        "kv_tokens": plan.kv_tokens,
        "max_concurrency": plan.max_concurrency,
        "fits": [{"length": length, "sequences": count} for length, count in plan.fits],
        "settings": {name: value for name, value in asdict(settings).items() if name != "reasons"},
        "reasons": dict(settings.reasons),
    }
