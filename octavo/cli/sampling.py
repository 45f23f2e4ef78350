"""Sampling flags that `generate` and `chat` share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from octavo.config.fields import Flag
from octavo.types import SamplingParams


@dataclass(frozen=True)
class SamplingOptions:
    """How texts are sampled; what is left out comes from the model's generation_config.json, else from `SamplingParams`."""

    max_tokens: Annotated[int | None, Flag("most tokens of an answer")] = None
    temperature: Annotated[float | None, Flag("0: always the likeliest token; higher: more varied")] = None
    top_p: Annotated[float | None, Flag("sample among the likeliest tokens that together reach this share")] = None
    top_k: Annotated[int | None, Flag("sample among this many of the likeliest tokens; 0: all")] = None
    min_p: Annotated[float | None, Flag("sample among tokens at least this likely, as a share of the likeliest one's")] = None
    presence_penalty: Annotated[float | None, Flag("lower tokens that have appeared, -2 to 2")] = None
    frequency_penalty: Annotated[float | None, Flag("lower tokens the more they have appeared, -2 to 2")] = None
    repetition_penalty: Annotated[float | None, Flag("divide the scores of tokens that have appeared; over 0, 1: off")] = None
    stop: Annotated[tuple[str, ...], Flag("end the text before any of these strings")] = ()

    def params(self, base: SamplingParams, max_tokens: int | None) -> SamplingParams:
        """`base` with what was asked; `max_tokens` where it was not asked. Raises `InvalidRequest`."""
        asked: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        asked = {name: value for name, value in asked.items() if value not in (None, ())}
        return dataclasses.replace(base, **{"max_tokens": max_tokens, **asked})
