"""An `LLM` without a model: it answers every prompt with a text made from it, and remembers how it was asked."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from octavo.types import CompletionOutput, RequestOutput, SamplingParams


class FakeLLM:
    made: list[FakeLLM] = []

    def __init__(self, model: str = "default", **flags: Any) -> None:
        self.model, self.flags = model, flags
        self.info = {"vocab_size": 1000, "timeline": [], "meanwhile": []}
        self.asked: list[tuple[Any, Any]] = []
        FakeLLM.made.append(self)

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(top_p=0.9)

    def generate(self, prompts: Sequence[Any], sampling_params: Any, use_tqdm: bool = True) -> list[RequestOutput]:
        self.asked.append((list(prompts), sampling_params))
        params = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params] * len(prompts)
        return [_answer(str(number), prompt, one) for number, (prompt, one) in enumerate(zip(prompts, params, strict=True))]

    def chat_stream(self, messages: Sequence[Mapping[str, Any]], sampling_params: Any) -> Iterator[str]:
        self.asked.append(([dict(message) for message in messages], sampling_params))
        yield from ("answer to ", str(messages[-1]["content"]))

    def close(self) -> None:
        pass


def _answer(number: str, prompt: Any, params: SamplingParams) -> RequestOutput:
    text = f"answer to {prompt}" if isinstance(prompt, str) else ""
    count = params.max_tokens or 1
    return RequestOutput(
        number, prompt if isinstance(prompt, str) else None, [1], [CompletionOutput(0, text, [7] * count, finish_reason="length")], True
    )


def install(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Put the fake where commands find `LLM`; the list fills with those that are made."""
    module = types.ModuleType("octavo.llm")
    module.LLM = FakeLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.llm", module)
    monkeypatch.setattr(FakeLLM, "made", [])
    return FakeLLM.made
