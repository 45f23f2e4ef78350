"""Octavo: LLM inference and serving. The public names; what needs torch is imported on first use, so that `import octavo` is quick."""

from __future__ import annotations

from typing import Any

from octavo.types import CompletionOutput, RequestOutput, SamplingParams, StructuredOutputsParams

__version__ = "0.1.0"
__all__ = ["CompletionOutput", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"]


def __getattr__(name: str) -> Any:
    """`LLM`, `AsyncLLM` and `EngineConfig`, imported when they are asked for."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "AsyncLLM":
        from octavo.async_llm import AsyncLLM

        return AsyncLLM
    if name == "EngineConfig":
        from octavo.config.engine import EngineConfig

        return EngineConfig
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "LLM", "AsyncLLM", "EngineConfig"])
