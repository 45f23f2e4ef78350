"""The memory plan as a page to read and as plain data. The engine prints the same page when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from octavo.config.resolved import Resolved
from octavo.plan.devices import GIB, MIB
from octavo.plan.memory import MemoryPlan

LABELS = {
    "weight_bytes": "weights",
    "activation_bytes": "activations",
    "logits_bytes": "logits and sampling",
    "row_bytes": "rows and block tables",
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
        f"  fits at once: {', '.join(f'{count:,} x {length:,} tokens' for length, count in plan.fits)}",
        f"  max_model_len {settings.max_model_len:,}: {plan.max_concurrency:.2f} sequences of that length",
        f"  this layout again: --kv-cache-memory-bytes {plan.kv_bytes}",
    ]
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
