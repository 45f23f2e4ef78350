"""What a tool format is, and which there are. A new one is a file with such a class and a line here."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from octavo.registry import Registry
from octavo.serve.parts import Reader, Reading


class ToolFormat(Protocol):
    """How a kind of model writes calls of tools into its text."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that it needs to see, although they may be control tokens."""
        ...

    def read(self, reader: Reader, known: AbstractSet[str]) -> Reading[None]:
        """Tell calls and content. `known`: the tools that were offered; what names another one is still a call, if a marker says so."""
        ...


TOOL_FORMATS = Registry(  # names are vLLM's
    "tool-call parser",
    {
        "hermes": "octavo.serve.tools.hermes:Hermes",
        "mistral": "octavo.serve.tools.mistral:Mistral",
        "llama3_json": "octavo.serve.tools.llama3_json:Llama3Json",
        "llama4_json": "octavo.serve.tools.llama3_json:Llama3Json",
        "pythonic": "octavo.serve.tools.pythonic:Pythonic",
        "llama4_pythonic": "octavo.serve.tools.pythonic:Pythonic",
        "deepseek_v3": "octavo.serve.tools.deepseek_v3:DeepSeekV3",
        "deepseek_v31": "octavo.serve.tools.deepseek_v3:DeepSeekV3",
    },
)
