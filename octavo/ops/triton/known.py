"""The list of kernels that models are known to run with, `known.json`: written by `bench/gpu/record_kernels.py`. No torch here."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).with_name("known.json")  # a list of [module, function, Triton's specialisation data]


@dataclass(frozen=True)
class Kernel:
    """One kernel as it is compiled."""

    module: str
    name: str
    data: str  # JSON: types, alignments, constants, options

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads(self.data)

    @property
    def signature(self) -> dict[str, Any]:
        return {name: _hashable(kind) for name, kind in self.about["signature"].items()}

    @property
    def options(self) -> dict[str, Any]:
        return {name: _hashable(value) for name, value in self.about["options"].items()}

    def source(self) -> Any:
        """What `triton.compile` takes. Imports the kernel's module."""
        from triton.compiler import ASTSource

        function = getattr(importlib.import_module(self.module), self.name)
        constants = {tuple(key): _constant(value) for key, value in zip(self.about["constant_keys"], self.about["constant_vals"])}
        attributes = {tuple(key): value for key, value in zip(self.about["attrs_keys"], self.about["attrs_vals"])}
        return ASTSource(function, self.signature, constants, attributes)


def known_kernels() -> list[Kernel]:
    return [Kernel(*entry) for entry in json.loads(KNOWN.read_bytes())]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _constant(value: Any) -> Any:
    """A constant as the kernel got it; its JSON form marks types and nested constants."""
    import triton.language as tl

    if tl.dtype.is_dtype(value):
        return tl.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return tl.constexpr(value["constexpr"])
    return value
