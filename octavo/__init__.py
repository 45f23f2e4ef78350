"""Octavo: LLM inference and serving. The public names; what needs torch is imported on first use, so that `import octavo` is quick."""

from __future__ import annotations

from typing import Any

from octavo.host.torch_ahead import load_torch_ahead
from octavo.registry import Registry
from octavo.types import (
    CompletionOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    SamplingParams,
    ScoringRequestOutput,
    StructuredOutputsParams,
)

__version__ = "0.1.0"
__all__ = [
    "CompletionOutput", "EmbeddingRequestOutput", "RequestOutput", "SamplingParams", "ScoringRequestOutput", "StructuredOutputsParams",
    "__version__",
]  # fmt: skip

_LATER = Registry(
    "public name",
    {
        "LLM": "octavo.llm:LLM",
        "AsyncLLM": "octavo.async_llm:AsyncLLM",
        "EngineConfig": "octavo.config.engine:EngineConfig",
        "TextPrompt": "octavo.text.intake:TextPrompt",
        "TokensPrompt": "octavo.text.intake:TokensPrompt",
    },
)


def __getattr__(name: str) -> Any:
    if name == "LLM":  # will want torch in this process
        load_torch_ahead()
    if name in _LATER.places:
        return _LATER.load(name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER.places])
