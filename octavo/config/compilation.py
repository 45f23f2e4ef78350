"""How much is done at start to run faster later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from octavo import env
from octavo.config.fields import ConfigError, Flag, at_least

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]


@dataclass(frozen=True)
class CompilationConfig:
    """Optimisation level, graphs and kernels."""

    optimization_level: Annotated[
        int,
        Flag(
            "0: reference operations, no graphs; 1: fused operations; 2: all fusions and graphs; 3: on a GPU also tries how products of "
            "shapes that no table has are done best: minutes at the first start, kept in the cache folder",
            short=("-O",),
        ),
    ] = 2
    enforce_eager: Annotated[bool, Flag("record no graphs, whatever the level")] = False
    cudagraph_mode: Annotated[
        GraphMode | None,
        Flag(
            "which steps are recorded as graphs: FULL_DECODE_ONLY whole decode steps, PIECEWISE the model's pass over any step, "
            "the other two both; default by level"
        ),
    ] = None
    cudagraph_capture_sizes: Annotated[
        tuple[int, ...], Flag("batch sizes, in tokens, for which graphs are recorded; default by --max-num-seqs")
    ] = ()
    max_cudagraph_capture_size: Annotated[int | None, Flag("largest of those sizes where they are not given")] = None
    attention_backend: Annotated[
        str,
        Flag(
            "implementation of attention; auto: the first that can run this model here; FLASHINFER: that library, where it is installed, "
            "with --enforce-eager",
            env=env.ATTENTION_BACKEND,
        ),
    ] = "auto"

    batch_invariant: Annotated[
        bool,
        Flag(
            "the same text for a request whatever runs beside it: every sum in one order. Slower, most of all at few sequences",
            env=env.BATCH_INVARIANT,
        ),
    ] = False

    profiler_config: Annotated[
        dict[str, Any], Flag("JSON; torch_profiler_dir: folder for the profiles that /start_profile and /stop_profile take of steps")
    ] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name, value in self.profiler_config.items():
            if name != "torch_profiler_dir" and (name, value) != ("profiler", "torch"):
                raise ConfigError("profiler_config", {name: value}, "use torch_profiler_dir, the folder of PyTorch's profiles")
        if not 0 <= self.optimization_level <= 3:
            nearest = 0 if self.optimization_level < 0 else 3
            raise ConfigError("optimization_level", self.optimization_level, f"use 0 to 3 (nearest: {nearest})")
        if self.enforce_eager and self.cudagraph_mode not in (None, "NONE"):
            raise ConfigError("cudagraph_mode", self.cudagraph_mode, "--enforce-eager records no graphs; leave one of them out")
        if self.cudagraph_capture_sizes and min(self.cudagraph_capture_sizes) < 1:
            raise ConfigError("cudagraph_capture_sizes", self.cudagraph_capture_sizes, "each size must be at least 1")
        at_least("max_cudagraph_capture_size", self.max_cudagraph_capture_size, 1)
        if self.cudagraph_capture_sizes and self.max_cudagraph_capture_size is not None:
            raise ConfigError(
                "max_cudagraph_capture_size",
                self.max_cudagraph_capture_size,
                "--cudagraph-capture-sizes already says which; give one of them",
            )
