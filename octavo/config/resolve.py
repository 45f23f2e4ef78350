"""The only place where "auto" is decided: asked settings, the model's config.json and a device give the settings that run.

Each decision keeps its reason. This file stands above `plan`, whose arithmetic it decides with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo import env
from octavo.config.architecture import Architecture
from octavo.config.engine import EngineConfig
from octavo.config.expert_ranks import expert_ranks
from octavo.config.fields import ConfigError
from octavo.config.graphs import graph_mode, graph_sizes, pass_sizes
from octavo.config.invariant import batch_invariant
from octavo.config.mxfp4 import METHOD as MXFP4
from octavo.config.mxfp4 import kept_in_mxfp4
from octavo.config.resolved import NOTHING_PACKED, Packed, Resolved
from octavo.plan import memory
from octavo.plan.devices import GIB, Device

LARGE_DEVICE_BYTES = 70 * GIB
SMALL_CPU_CACHE_BYTES = 4 * GIB
DTYPE_NAMES = {"half": "float16", "float": "float32"}
E4M3_SM = 89  # compute capability, times ten, from which GPUs convert fp8_e4m3
PACKED_KINDS = ("Q4_0", "Q4_1", "Q8_0")  # of a .gguf file's blocks: those that products are made with as they are
BLOCK_VALUES = 32  # that share a scale


@dataclass(frozen=True)
class _Batch:
    """The step's limits while they are decided."""

    max_num_seqs: int
    max_num_batched_tokens: int


def resolve(
    asked: EngineConfig, checkpoint: Mapping[str, Any], device: Device, *, offline: bool = False
) -> Resolved:
    """Decide every setting. `checkpoint` is the model's config.json, overrides applied; `offline` takes the larger step of `LLM`.

    Raises `ConfigError`, which names the flag, the value and what works, and `UnsupportedModel`.
    """
    arch = Architecture.from_config(checkpoint)
    if asked.parallel.numa_bind and device.kind == "cpu":
        raise ConfigError("numa_bind", True, "there is no GPU; workers on the CPU are placed by CPU_VISIBLE_MEMORY_NODES and "
                          "OCTAVO_CPU_OMP_THREADS_BIND (docs/placement.md)")  # fmt: skip
    device = _of_one_worker(asked, device)
    reasons: dict[str, str] = {"device": f"{device.name}, {device.memory_bytes / GIB:.1f} GiB"}
    experts, dispatch = expert_ranks(asked.parallel, arch, reasons)
    _check_cuts(asked, arch)
    dtype = _dtype(asked, arch, device, reasons)
    packed = _packed(asked, checkpoint, arch, device, reasons)
    limit = _model_limit(asked, arch, reasons)
    fixed = isinstance(asked.model.max_model_len, int) and asked.model.max_model_len != -1
    max_model_len = int(asked.model.max_model_len) if fixed else limit  # pyright: ignore[reportArgumentType]
    batch = _batch(asked, device, max_model_len, offline, reasons)
    settings = Resolved(
        device=device.kind,
        dtype=dtype,
        quantization="none" if not packed else MXFP4 if _method(checkpoint) == MXFP4 else "gguf",
        packed=packed or NOTHING_PACKED,
        seed=asked.model.seed,
        max_model_len=max_model_len,
        most_model_len=asked.model.most_model_len or 0,
        block_size=asked.cache.block_size,
        kv_dtype=_kv_dtype(asked, arch, dtype, bool(packed), device, reasons),
        enable_prefix_caching=asked.cache.enable_prefix_caching,
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        enable_chunked_prefill=asked.scheduler.enable_chunked_prefill,
        scheduling_policy=asked.scheduler.scheduling_policy,
        max_num_partial_prefills=asked.scheduler.max_num_partial_prefills,
        max_long_partial_prefills=asked.scheduler.max_long_partial_prefills,
        target_itl_s=(asked.scheduler.target_itl_ms or 0.0) / 1000,
        target_ttft_s=(asked.scheduler.target_ttft_ms or 0.0) / 1000,
        overlap_depth=_overlap_depth(asked, device, reasons),
        tensor_parallel_size=asked.parallel.tensor_parallel_size,
        pipeline_parallel_size=asked.parallel.pipeline_parallel_size,
        data_parallel_size=asked.parallel.data_parallel_size,
        expert_parallel_size=experts,
        dispatch=dispatch,
        executor_backend=asked.parallel.distributed_executor_backend or ("uni" if asked.parallel.world_size == 1 else "mp"),
        logits_processors=asked.model.logits_processors,
        optimization_level=asked.compilation.optimization_level,
        graph_mode=graph_mode(asked, device, dispatch, reasons),
        attention_backend=asked.compilation.attention_backend,
        batch_invariant=batch_invariant(asked, arch),
        profiler_dir=str(asked.compilation.profiler_config.get("torch_profiler_dir", "")),
        reasons=reasons,
    )
    settings = replace(settings, graph_sizes=graph_sizes(asked, settings), pass_sizes=pass_sizes(asked, settings))
    settings = replace(settings, kv_bytes=_kv_bytes(asked, arch, device, settings, reasons), kv_bytes_exact=_is_exact(asked))
    settings = _fit(asked, arch, settings, reasons)
    _check_classes(settings)
    return replace(settings, long_prefill_token_threshold=_long_threshold(asked, settings, reasons))


def _of_one_worker(asked: EngineConfig, device: Device) -> Device:
    """A GPU is a worker's own; all workers on the CPU share its memory."""
    parallel = asked.parallel
    workers = parallel.ranks_per_host * len(parallel.replicas_here) if device.kind == "cpu" else 1
    return replace(device, memory_bytes=device.memory_bytes // workers, free_bytes=device.free_bytes // workers)


def _check_classes(settings: Resolved) -> None:
    if settings.most_model_len >= settings.max_model_len:
        longest = f"--max-model-len = {settings.max_model_len}"
        raise ConfigError("most_model_len", settings.most_model_len, f"it must be less than {longest}, or be left out")


def _check_cuts(asked: EngineConfig, arch: Architecture) -> None:
    """Raises `ConfigError` where layers or heads cannot be divided over the ranks."""
    tensor, pipeline = asked.parallel.tensor_parallel_size, asked.parallel.pipeline_parallel_size
    whole = asked.parallel.enable_expert_parallel
    works = [size for size in range(1, arch.heads + 1) if divides(arch, size, whole)]
    if tensor not in works:
        raise ConfigError(
            "tensor_parallel_size", tensor, f"the model has {arch.heads} attention heads, {arch.kv_heads} key/value heads and "
            f"{' and '.join(map(str, _inner(arch, whole)))} inner features of the MLP; sizes that work: {', '.join(map(str, works))}; "
            "--pipeline-parallel-size divides any model by layers",
        )  # fmt: skip
    if pipeline > arch.num_layers:
        raise ConfigError("pipeline_parallel_size", pipeline, f"the model has {arch.num_layers} layers; use at most that")


def divides(arch: Architecture, size: int, whole_experts: bool = False) -> bool:
    """Whether layers can be cut over so many ranks. Key/value heads may be fewer: neighbouring ranks then hold the same."""
    uneven = arch.heads % size or any(width % size for width in _inner(arch, whole_experts))
    return not (uneven or (arch.kv_heads % size and size % arch.kv_heads))


def _inner(arch: Architecture, whole_experts: bool) -> list[int]:
    """The widths, between their two products, of the MLPs and of the experts that are cut."""
    found = {arch.intermediate for layer in arch.layers if layer.experts is None}
    for experts in {layer.experts for layer in arch.layers if layer.experts}:
        found |= {experts.shared_intermediate, 0 if whole_experts else experts.intermediate}
    return sorted(found - {0})


def _overlap_depth(asked: EngineConfig, device: Device, reasons: dict[str, str]) -> int:
    given = asked.scheduler.async_scheduling
    if given is None and device.kind == "cpu" and asked.parallel.world_size == 1:
        # There is no device beside the host: a step runs while it is submitted, and with overlap every token would wait for the next step.
        reasons["overlap_depth"] = "steps run on the host itself, so there is nothing to overlap"
        return 0
    if asked.parallel.pipeline_parallel_size > 1:
        reasons["overlap_depth"] = "a plan for each stage, and one to come"
        return asked.parallel.pipeline_parallel_size
    return 0 if given is False else 1


def _dtype(asked: EngineConfig, arch: Architecture, device: Device, reasons: dict[str, str]) -> str:
    given = asked.model.dtype
    name = DTYPE_NAMES.get(given, given)
    if name == "auto":
        name = _auto_dtype(arch, device, reasons)
    else:
        reasons["dtype"] = "as asked"
    if name == "bfloat16" and device.kind == "cuda" and "bfloat16" not in device.fast_dtypes:
        raise ConfigError("dtype", given, f"{device.name} does not compute in bfloat16; use float16 or float32")
    if name == "float16" and arch.family.startswith("gemma"):
        raise ConfigError("dtype", given, f"{arch.family} overflows in float16; use bfloat16 or float32")
    return name


def _auto_dtype(arch: Architecture, device: Device, reasons: dict[str, str]) -> str:
    stored = arch.dtype or "float32"
    if stored in device.fast_dtypes and stored != "float32":
        reasons["dtype"] = f"the checkpoint's, and {device.name} is fast with it"
        return stored
    fast = device.fast_dtypes[0]
    if fast == "float16" and arch.family.startswith("gemma"):
        fast = "float32"
    reasons["dtype"] = f"the checkpoint is in {stored}; {fast} is what {device.name} is fastest with"
    return fast


def _packed(
    asked: EngineConfig, checkpoint: Mapping[str, Any], arch: Architecture, device: Device, reasons: dict[str, str]
) -> Packed | None:
    """What stays packed of one rank's weights; None: nothing. Raises `ConfigError`."""
    stored: Mapping[str, Any] = checkpoint.get("quantization_config") or {}
    method, given = _method(checkpoint), asked.model.quantization
    if method == MXFP4:
        return kept_in_mxfp4(asked, arch, reasons)
    if given == MXFP4:
        raise ConfigError("quantization", given, "the model has no experts in this format; use none or auto")
    if asked.model.load_format == "dummy":
        return None
    if method not in (None, "gguf"):
        raise ConfigError(
            "model", asked.model.model, f"its weights are quantised by {method}; use a .gguf file, or a checkpoint without quantisation"
        )
    kinds: Mapping[str, tuple[int, int]] = stored.get("tensors", {})
    known = [Packed(*kinds[kind]) for kind in PACKED_KINDS if kind in kinds]
    ranks = asked.parallel.world_size
    total = Packed(sum(packed.num_values for packed in known) // ranks, sum(packed.num_bytes for packed in known) // ranks)
    why_not = _why_not_packed(asked, arch, device, known, kinds)
    if given == "gguf" and not known:
        raise ConfigError("quantization", given, f"the model has no weights in {', '.join(PACKED_KINDS)}; use none or auto")
    if given == "gguf" and device.kind != "cpu":
        raise ConfigError("quantization", given, f"products with packed weights are made on CPU only, not on {device.name}; use none")
    if given == "gguf" and (whole := _why_whole(asked, arch)):
        raise ConfigError("quantization", given, f"{whole}; use none, or fewer ranks")
    if kinds:
        share = f"{', '.join(kind for kind in PACKED_KINDS if kind in kinds)} as in the file: {_gib(total.num_bytes)}"
        reasons["quantization"] = "as asked" if given != "auto" else why_not or share
    return total if given == "gguf" or (given == "auto" and not why_not) else None


def _method(checkpoint: Mapping[str, Any]) -> str | None:
    """How the checkpoint's weights are quantised."""
    stored: Mapping[str, Any] = checkpoint.get("quantization_config") or {}
    return stored.get("quant_method")


def _why_not_packed(
    asked: EngineConfig, arch: Architecture, device: Device, known: list[Packed], kinds: Mapping[str, Any]
) -> str:
    """Why weights become plain numbers when nothing was asked; empty where they stay packed."""
    if not known:
        return f"no products are made with {', '.join(kinds)} as they are"
    if asked.model.dtype != "auto":
        return "--dtype is given"
    if asked.compilation.batch_invariant:
        return "--batch-invariant"
    if whole := _why_whole(asked, arch):
        return whole
    if not device.packed_products or asked.compilation.optimization_level == 0:
        return "-O0" if device.packed_products else f"{device.name} has no kernels for packed weights"
    return ""


def _why_whole(asked: EngineConfig, arch: Architecture) -> str:
    """Why packed weights cannot be cut over ranks; empty where they can: a block of 32 stays in one piece."""
    part = memory.one_rank(arch, asked.parallel.tensor_parallel_size)
    broken = [size for size in (part.q_dim, part.intermediate) if size % BLOCK_VALUES]
    return f"a rank would have {broken[0]} inner features, which do not end between blocks of {BLOCK_VALUES}" if broken else ""


def _model_limit(asked: EngineConfig, arch: Architecture, reasons: dict[str, str]) -> int:
    """The longest context that the model's positions are good for. Raises `ConfigError` where more is asked."""
    limit = arch.max_length
    origin = f"max_position_embeddings = {arch.max_position}"
    if limit != arch.max_position:
        kind = next(layer.rope.kind for layer in arch.layers if layer.rope is not None and layer.rope.kind != "plain")
        origin += f", scaled by rope_type {kind} to {limit}"
    wanted = asked.model.max_model_len
    if isinstance(wanted, int) and wanted > limit:
        raise ConfigError("max_model_len", wanted, f"the model's positions end at {limit} ({origin}); use at most {limit}")
    reasons["max_model_len"] = f"as asked; the model goes to {limit}" if isinstance(wanted, int) and wanted != -1 else origin
    return limit


def _batch(asked: EngineConfig, device: Device, max_model_len: int, offline: bool, reasons: dict[str, str]) -> _Batch:
    """How many sequences and tokens a step takes, by the device's size where not asked."""
    seqs, tokens = asked.scheduler.max_num_seqs, asked.scheduler.max_num_batched_tokens
    large = device.memory_bytes >= LARGE_DEVICE_BYTES
    if device.kind == "cpu":
        default_seqs, default_tokens, why = 32, 2048, "default on CPU"
    else:
        default_seqs, default_tokens = (1024, 16384 if offline else 8192) if large else (256, 8192 if offline else 2048)
        why = f"default on GPUs {'from' if large else 'below'} 70 GiB{' for LLM' if offline else ''}"
    reasons["max_num_seqs"] = "as asked" if seqs is not None else why
    reasons["max_num_batched_tokens"] = "as asked" if tokens is not None else why
    chosen_seqs = seqs if seqs is not None else default_seqs
    if tokens is None:
        tokens = min(default_tokens, chosen_seqs * max_model_len)
        if not asked.scheduler.enable_chunked_prefill and tokens < max_model_len:
            tokens, reasons["max_num_batched_tokens"] = max_model_len, "a whole prompt must fit in a step without chunked prefill"
        tokens = max(tokens, chosen_seqs) if seqs is not None else tokens
    elif not asked.scheduler.enable_chunked_prefill and tokens < max_model_len:
        raise ConfigError(
            "max_num_batched_tokens", tokens,
            f"without chunked prefill a whole prompt of --max-model-len = {max_model_len} must fit in one step; use at least "
            f"{max_model_len}, a --max-model-len of at most {tokens}, or --enable-chunked-prefill",
        )  # fmt: skip
    if seqs is None and chosen_seqs > tokens:
        chosen_seqs, reasons["max_num_seqs"] = tokens, f"no more sequences than tokens a step ({tokens})"
    return _Batch(chosen_seqs, tokens)


def _kv_dtype(
    asked: EngineConfig, arch: Architecture, dtype: str, packed: bool, device: Device, reasons: dict[str, str]
) -> str:
    given = asked.cache.kv_cache_dtype
    if given.startswith(("fp8", "int8")):
        if arch.latent is not None:
            raise ConfigError("kv_cache_dtype", given, "the vectors of latent attention are kept as they are; use auto")
        slow = asked.compilation.attention_backend == "reference" or asked.compilation.optimization_level == 0
        if given in ("fp8", "fp8_e4m3") and device.kind == "cuda" and 0 < device.sm < E4M3_SM and not slow:
            raise ConfigError("kv_cache_dtype", given, f"{device.name} does not convert it; use fp8_e5m2, int8 or auto")
    if given == "fp8":
        reasons["kv_dtype"] = "fp8 means fp8_e4m3"
        return "fp8_e4m3"
    if given == "auto" and packed and dtype == "float32":
        reasons["kv_dtype"] = "half of float32's memory and time to read it; packed weights are rounded by far more"
        return "float16"
    reasons["kv_dtype"] = "that of the model" if given == "auto" else "as asked"
    return dtype if given == "auto" else given


def _kv_bytes(asked: EngineConfig, arch: Architecture, device: Device, settings: Resolved, reasons: dict[str, str]) -> int:
    """Size of the KV cache. Raises `ConfigError` where the device has no room for it."""
    taken = memory.costs(arch, settings)
    if taken.total >= device.memory_bytes:
        raise ConfigError(
            "model", asked.model.model,
            f"its weights take {_gib(taken.weight_bytes)}, with activations {_gib(taken.total)}, and {device.name} has "
            f"{_gib(device.memory_bytes)}; use a smaller model or a larger device",
        )  # fmt: skip
    exact = _exact_kv_bytes(asked, arch, settings, reasons)
    if exact is not None:
        room = device.free_bytes - taken.total
        if exact > room:
            raise ConfigError(
                reasons["kv_bytes"].removeprefix("--"), exact,
                f"{device.name} has {_gib(device.free_bytes)} free, of which the model takes {_gib(taken.total)}; "
                f"use at most {max(0, room)} bytes of KV cache",
            )  # fmt: skip
        return exact
    if device.kind == "cpu":
        return _cpu_kv_bytes(arch, device, settings, taken, reasons)
    share = asked.cache.gpu_memory_utilization
    budget = int(device.memory_bytes * share)
    if budget > device.free_bytes:
        nearest = int(device.free_bytes / device.memory_bytes * 100) / 100
        raise ConfigError(
            "gpu_memory_utilization", share, f"that is {_gib(budget)}, but only {_gib(device.free_bytes)} are free; use {nearest}"
        )
    if budget <= taken.total:
        raise ConfigError(
            "gpu_memory_utilization", share,
            f"that is {_gib(budget)}, and the model takes {_gib(taken.total)} (weights {_gib(taken.weight_bytes)}), so nothing is left for "
            "the KV cache; raise it, lower --max-num-batched-tokens or --max-num-seqs, or use a smaller model",
        )  # fmt: skip
    reasons["kv_bytes"] = (
        f"{share:.0%} of {_gib(device.memory_bytes)}, less {_gib(taken.total)} for weights, activations, graphs and reserve"
    )
    return budget - taken.total


def _is_exact(asked: EngineConfig) -> bool:
    return asked.cache.kv_cache_memory_bytes is not None or asked.cache.num_gpu_blocks_override is not None


def _exact_kv_bytes(asked: EngineConfig, arch: Architecture, settings: Resolved, reasons: dict[str, str]) -> int | None:
    """The size where it was asked for, in bytes or in blocks."""
    if asked.cache.kv_cache_memory_bytes is not None:
        reasons["kv_bytes"] = "--kv-cache-memory-bytes"
        return asked.cache.kv_cache_memory_bytes
    if asked.cache.num_gpu_blocks_override is not None:
        reasons["kv_bytes"] = "--num-gpu-blocks-override"
        layout = memory.kv_layout(arch, settings, 0)
        return asked.cache.num_gpu_blocks_override * memory.pool_block_bytes(layout)
    return None


def _cpu_kv_bytes(arch: Architecture, device: Device, settings: Resolved, taken: memory.Costs, reasons: dict[str, str]) -> int:
    """Of host memory a modest part, as other programs want some too: 4 GiB or a quarter of what is free; more for one whole sequence."""
    asked_gib = env.CPU_KVCACHE_SPACE.get()
    free = max(0, device.free_bytes - taken.total)
    if asked_gib:
        if asked_gib * GIB > free:
            raise ConfigError(
                "OCTAVO_CPU_KVCACHE_SPACE", asked_gib, f"beside the model {_gib(free)} are free; use at most {free / GIB:.2f}"
            )
        reasons["kv_bytes"] = "OCTAVO_CPU_KVCACHE_SPACE"
        return int(asked_gib * GIB)
    layout = memory.kv_layout(arch, settings, 0)
    blocks = memory.sequence_blocks(layout, settings.max_model_len, min(settings.max_num_batched_tokens, settings.max_model_len))
    modest, one = min(SMALL_CPU_CACHE_BYTES, free // 4), blocks * memory.pool_block_bytes(layout)
    if modest < one <= free // 2:
        reasons["kv_bytes"] = f"one sequence of {settings.max_model_len} tokens; OCTAVO_CPU_KVCACHE_SPACE (GiB) changes it"
        return one
    reasons["kv_bytes"] = f"4 GiB or a quarter of the {_gib(free)} that are free, the smaller; OCTAVO_CPU_KVCACHE_SPACE (GiB) changes it"
    return modest


def _fit(asked: EngineConfig, arch: Architecture, settings: Resolved, reasons: dict[str, str]) -> Resolved:
    """See that one sequence of the full length fits, or find the longest that does. Raises `ConfigError` with that length."""
    layout = memory.kv_layout(arch, settings)
    enough = layout.num_blocks * memory.pool_block_bytes(layout) <= settings.kv_bytes
    longest = memory.longest_fit(layout, settings.max_model_len, settings.max_num_batched_tokens) if enough else 0
    if longest >= settings.max_model_len:
        return settings
    need = memory.sequence_blocks(layout, settings.max_model_len, settings.max_num_batched_tokens) * memory.pool_block_bytes(layout)
    if asked.model.max_model_len in ("auto", -1) and longest >= 2:
        reasons["max_model_len"] = (
            f"the longest that fits in {_gib(settings.kv_bytes)} of KV cache; the model would go to {settings.max_model_len}"
        )
        return replace(settings, max_model_len=longest)
    raise ConfigError(
        "max_model_len", settings.max_model_len,
        f"one such sequence needs {_gib(need)} of KV cache and there are {_gib(settings.kv_bytes)}; the longest that fits is {longest}: "
        f"set --max-model-len {longest} or auto, or give the cache more ({_more_room(settings)})",
    )  # fmt: skip


def _more_room(settings: Resolved) -> str:
    if settings.reasons.get("kv_bytes") in ("--kv-cache-memory-bytes", "--num-gpu-blocks-override"):
        return settings.reasons["kv_bytes"]
    return "OCTAVO_CPU_KVCACHE_SPACE, in GiB" if settings.device == "cpu" else "--gpu-memory-utilization"


def _long_threshold(asked: EngineConfig, settings: Resolved, reasons: dict[str, str]) -> int:
    given = asked.scheduler.long_prefill_token_threshold
    if given > settings.max_model_len:
        raise ConfigError(
            "long_prefill_token_threshold", given, f"no prompt is longer than --max-model-len = {settings.max_model_len}; use at most that"
        )
    if given == 0 and settings.max_num_partial_prefills > 1:
        reasons["long_prefill_token_threshold"] = "4 % of max_model_len, as several partial prefills are allowed"
        return max(1, int(0.04 * settings.max_model_len))
    return given


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.1f} MiB"
