"""The KV cache: how much memory, in blocks of how many tokens, in which number format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from octavo.config.fields import ConfigError, Flag, at_least

BLOCK_SIZES = (8, 16, 32, 64, 128)

KVDType = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"]

KV_DTYPE_HELP = (
    "number format of cached keys and values; auto: that of the model, but float16 for float32 beside packed weights; int8, fp8 (short for "
    "fp8_e4m3) and fp8_e5m2 hold nearly twice as many tokens, at a perplexity that is about 0.2, 1 to 2, and 6 percent higher"
)


@dataclass(frozen=True)
class CacheConfig:
    """Memory of the device and the KV cache in it."""

    gpu_memory_utilization: Annotated[
        float, Flag("share of the GPU's memory that this instance may use, over 0 and up to 1", also=("device_memory_utilization",))
    ] = 0.90
    kv_cache_memory_bytes: Annotated[
        int | None,
        Flag("exact size of the KV cache in bytes a device; --gpu-memory-utilization then counts no more", also=("kv_cache_memory",)),
    ] = None
    block_size: Annotated[int, Flag(f"tokens a KV block: {', '.join(map(str, BLOCK_SIZES))}")] = 16
    kv_cache_dtype: Annotated[KVDType, Flag(KV_DTYPE_HELP)] = "auto"
    num_gpu_blocks_override: Annotated[int | None, Flag("exact number of KV blocks, for experiments with preemption")] = None
    enable_prefix_caching: Annotated[bool, Flag("share the KV of equal prompt beginnings between requests")] = True

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            nearest = 1.0 if self.gpu_memory_utilization > 1 else 0.9
            raise ConfigError(
                "gpu_memory_utilization", self.gpu_memory_utilization, f"it is a share over 0 and up to 1, for example {nearest}"
            )
        if self.block_size not in BLOCK_SIZES:
            nearest = min(BLOCK_SIZES, key=lambda size: abs(size - self.block_size))
            raise ConfigError("block_size", self.block_size, f"use one of {', '.join(map(str, BLOCK_SIZES))} (nearest: {nearest})")
        at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        at_least("num_gpu_blocks_override", self.num_gpu_blocks_override, 1)
        if self.kv_cache_memory_bytes is not None and self.num_gpu_blocks_override is not None:
            raise ConfigError(
                "num_gpu_blocks_override", self.num_gpu_blocks_override, "--kv-cache-memory-bytes already fixes the size; give one of them"
            )
