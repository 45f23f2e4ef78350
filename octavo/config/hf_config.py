"""Looking things up in a Hugging Face `config.json`, with complaints by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


class UnsupportedModel(ValueError):
    """The model's config asks for something that is not built, or lacks what is needed; the text says what would work."""


class HfConfig:
    """A config over the defaults for what it leaves out. A null in it is not replaced: it means off, or "derive it"."""

    def __init__(self, defaults: Config, config: Config) -> None:
        self.values: dict[str, Any] = {**defaults, **config}

    def over(self, values: Config) -> HfConfig:
        """The same with more put over it."""
        return HfConfig(self.values, values)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnsupportedModel(f"config.json: {key} = {value!r}, but a positive integer is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UnsupportedModel(f"config.json: {key} = {value!r}, but a finite number is needed")
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        return bool(self.values.get(key, False))
