"""What was decided: every "auto" of the user's settings replaced by a value. Made once, by `resolve`, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Packed(NamedTuple):
    """What stays packed of the weights."""

    num_values: int = 0
    num_bytes: int = 0


NOTHING_PACKED = Packed()


@dataclass(frozen=True)
class Resolved:
    """The settings that the engine runs with. The defaults here suit tests; real ones come from `resolve`."""

    device: str = "cpu"
    dtype: str = "float32"  # of weights and activations, a torch dtype's name
    quantization: str = "none"  # or "gguf", "mxfp4": weights stay packed as in the file
    packed: Packed = NOTHING_PACKED
    seed: int = 0
    # memory and cache
    max_model_len: int = 2048
    most_model_len: int = 0  # that most sequences stay within; 0: there is one class of lengths
    block_size: int = 16  # tokens a block
    kv_dtype: str = "float32"
    kv_bytes: int = 64 << 20  # of the whole KV arena
    kv_bytes_exact: bool = False  # as asked, to the byte: then nothing is tried at start to see whether it fits
    enable_prefix_caching: bool = True
    # scheduler
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    enable_chunked_prefill: bool = True
    scheduling_policy: str = "fcfs"  # or "priority", "fair"
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0  # 0: no prompt counts as long
    target_itl_s: float = 0.0  # 0: steps have one budget, max_num_batched_tokens
    target_ttft_s: float = 0.0  # 0: no target
    overlap_depth: int = 1  # plans in flight beside the one being committed
    num_speculative_tokens: int = 0
    logits_processors: tuple[str, ...] = ()  # the user's own sampling stages, by dotted name
    # layout over ranks
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1  # ranks over which whole experts lie; 1: each expert is cut over tensor-parallel ranks
    dispatch: str = "local"  # how tokens reach their experts (octavo/parallel/dispatch.py)
    executor_backend: str = "uni"  # or "mp" or "ray": each worker in a process of its own
    # levels
    optimization_level: int = 2
    graph_mode: str = "NONE"  # which steps are recorded as graphs
    graph_sizes: tuple[int, ...] = ()  # batch sizes, in tokens, that are recorded
    pass_sizes: tuple[int, ...] = ()  # ... of steps that are not all decodes
    attention_backend: str = "auto"
    batch_invariant: bool = False  # a token's logits depend on its own context alone, whatever else is in the batch
    profiler_dir: str = ""  # where profiles of steps go; empty: none are taken
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])  # field name -> why it has this value
