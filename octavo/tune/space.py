"""Which flags are moved, to which values, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config.resolved import Resolved
from octavo.tune.objective import Slo

Changes = Mapping[str, Any]  # flags that differ from those given; only what differs is in it

# What the scheduler alone reads: a running engine can go on with another value, of the first two with no larger one.
LIVE = (
    "max_num_seqs", "max_num_batched_tokens", "max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold",
    "target_itl_s", "target_ttft_s", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
LIVE_FLAGS = (
    "max_num_seqs", "max_num_batched_tokens", "max_num_partial_prefills", "long_prefill_token_threshold", "target_itl_ms", "target_ttft_ms",
    "enable_chunked_prefill",
    "data_parallel_size",  # one replica is played, whatever there are beside it
)  # fmt: skip
TOKENS = {"cuda": (1024, 2048, 4096, 8192, 16384), "cpu": (64, 128, 256, 512, 1024, 2048)}
LONG = {"cuda": (512, 2048), "cpu": (32, 128)}  # tokens of a prompt that is cut smaller, so that short ones find room beside it
SEQUENCES = {"cuda": (64, 128, 256, 512, 1024), "cpu": (8, 16, 32, 64)}
TARGET_SHARES = (0.6, 0.8, 1.0)  # of the limit between tokens

REASONS = {
    "max_num_batched_tokens": (
        "shorter steps: whoever is being answered waits less for the prompts of others",
        "larger steps: prompts wait less, and weights are read for more tokens",
    ),
    "max_num_seqs": ("fewer at once: each gets its tokens sooner", "more at once: weights are read for more sequences"),
    "max_num_partial_prefills": ("prompts are read one after the other", "short prompts need not wait for a long one to be read"),
    "enable_chunked_prefill": ("prompts are read whole",) * 2,
    "long_prefill_token_threshold": ("long prompts leave room beside them in a step",) * 2,
    "optimization_level": ("less is recorded",) * 2,
    "tensor_parallel_size": ("fewer GPUs share each layer", "more GPUs share each layer: each token comes sooner"),
    "pipeline_parallel_size": ("fewer stages", "more stages: less is said between GPUs than where they share each layer"),
    "data_parallel_size": ("fewer replicas", "more replicas, which share the requests"),
    "target_itl_ms": ("each step reads as many prompt tokens as the time between tokens allows",) * 2,
    "block_size": ("smaller blocks: less of each last block is wasted, and more prefixes match", "larger blocks: fewer of them to keep"),
    "gpu_memory_utilization": ("less memory for the KV cache", "more memory for the KV cache"),
    "kv_cache_dtype": ("more tokens in the KV cache, and fewer bytes to read",) * 2,
}


@dataclass(frozen=True)
class Choice:
    """A flag, and the values that are tried; the first is what it is without a change."""

    flag: str
    values: tuple[Any, ...]

    def reason(self, value: Any) -> str:
        before = self.values[0]
        upward = isinstance(value, (int, float)) and isinstance(before, (int, float)) and value > before
        return REASONS[self.flag][upward]


def choices(
    settings: Resolved, given: Mapping[str, Any], slo: Slo, kv_formats: Sequence[str] = (), num_devices: int = 1
) -> list[Choice]:
    """What may be moved under these settings. A flag that was given stays as it is; `kv_formats`: those that K and V may be kept in too."""
    kind, budget, seqs = settings.device, settings.max_num_batched_tokens, settings.max_num_seqs
    tokens = [n for n in TOKENS[kind] if n <= 2 * budget and (n >= min(SEQUENCES[kind]))]
    found = [
        Choice("max_num_batched_tokens", _first(budget, tokens)),
        Choice("max_num_seqs", _first(seqs, [n for n in SEQUENCES[kind] if n <= settings.max_model_len * 8])),
        Choice("max_num_partial_prefills", _first(settings.max_num_partial_prefills, (1, 4))),
        Choice("long_prefill_token_threshold", _first(settings.long_prefill_token_threshold, LONG[kind])),
        Choice("enable_chunked_prefill", _first(settings.enable_chunked_prefill, (False,))),
        Choice("block_size", _first(settings.block_size, (16, 32))),
        Choice("kv_cache_dtype", ("auto", *kv_formats)),
    ]
    limit = slo.limit_of("itl") or slo.limit_of("tpot")
    if limit is not None:
        targets = tuple(round(1000 * share * limit.seconds, 1) for share in TARGET_SHARES)
        found.insert(2, Choice("target_itl_ms", (None, *targets)))
    if kind == "cuda":
        found.append(Choice("gpu_memory_utilization", _first(given.get("gpu_memory_utilization", 0.9), (0.9, 0.94))))
        found.append(Choice("optimization_level", _first(settings.optimization_level, (1, 3))))
        found += layouts(settings, num_devices)
    return [choice for choice in found if choice.flag not in given and len(choice.values) > 1]


def layouts(settings: Resolved, num_devices: int) -> list[Choice]:
    """Over how many GPUs, in which way. Replicas that share experts take their steps together: none of them can be played alone."""
    sizes = [1 << k for k in range(num_devices.bit_length()) if 1 << k <= num_devices]
    names = ["tensor_parallel_size", "pipeline_parallel_size"]
    if settings.expert_parallel_size == 1:
        names.append("data_parallel_size")
    return [Choice(name, _first(getattr(settings, name), sizes)) for name in names]


def num_ranks(settings: Resolved) -> int:
    return settings.tensor_parallel_size * settings.pipeline_parallel_size * settings.data_parallel_size


def _first(now: Any, others: Any) -> tuple[Any, ...]:
    return (now, *(value for value in others if value != now))


def is_live(changes: Changes, running: Changes, settings: Resolved) -> bool:
    """Whether an engine that was started with `running`, and so with `settings`, can go on with `changes`."""
    fixed = [{flag: value for flag, value in one.items() if flag not in LIVE_FLAGS} for one in (changes, running)]
    fits = all(changes.get(name, 0) <= getattr(settings, name) for name in ("max_num_seqs", "max_num_batched_tokens"))
    return fits and fixed[0] == fixed[1]
