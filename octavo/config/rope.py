"""Rotary position embeddings as a config asks for them. `layers/rotary.py` computes their angles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.config.hf_config import Config, HfConfig, UnsupportedModel

ROPE_KINDS = ("plain", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class Rope:
    """A rotary position embedding. `kind` is one of ROPE_KINDS; fields that a kind does not use keep their defaults."""

    kind: str
    theta: float
    dim: int  # how much of each head is rotated; the rest passes through
    factor: float = 1.0
    max_position: int = 0  # the config's max_position_embeddings (dynamic)
    original_max_position: int = 0  # what the model was first trained on (llama3, yarn, longrope)
    attention_factor: float | None = None  # multiplies cos and sin (yarn, longrope); None: the papers' formula
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()  # longrope, one number for each rotated pair
    long_factor: tuple[float, ...] = ()

    def reach(self, max_position: int) -> int:
        """How many positions it serves. YaRN counts from the original length, so a config whose limit is scaled already is not scaled
        twice; llama3 and longrope state the scaled limit as max_position_embeddings."""
        if self.kind in ("linear", "dynamic"):
            return int(max_position * self.factor)
        return int(self.original_max_position * self.factor) if self.kind == "yarn" else max_position


def read_ropes(config: HfConfig, head_dim: int, aliases: Mapping[str, str], local_theta: float | None) -> tuple[Rope, Rope]:
    """The rope of layers that see everything and that of layers with a window.

    A config gives one for both (`rope_theta` with `rope_scaling`, or `rope_parameters`) or one for each under the layer types' names. In a
    family with a `local_theta` the layers with a window have a plain one of their own.
    """
    given: Config = config.get("rope_scaling") or config.get("rope_parameters") or {}
    by_type = {kind: given[kind] for kind in ("full_attention", "sliding_attention") if given.get(kind)}
    full = _rope(config, by_type.get("full_attention", {} if by_type else given), head_dim, aliases)
    if local_theta is not None:
        local = {"rope_theta": config.number("rope_local_base_freq", local_theta)}
        return full, _rope(config, {**local, **by_type.get("sliding_attention", {})}, head_dim, aliases)
    return full, _rope(config, by_type["sliding_attention"], head_dim, aliases) if "sliding_attention" in by_type else full


def _rope(config: HfConfig, given: Config, head_dim: int, aliases: Mapping[str, str]) -> Rope:
    asked = given.get("rope_type") or given.get("type") or "default"
    kind = aliases.get(asked, "plain" if asked == "default" else asked)
    if kind not in ROPE_KINDS:
        raise UnsupportedModel(f"config.json: rope_type = {asked!r} is not supported; supported are {', '.join(ROPE_KINDS)}")
    values = config.over(given)
    dim = int(head_dim * values.number("partial_rotary_factor", 1.0))
    if dim < 2 or dim % 2 or dim > head_dim:
        raise UnsupportedModel(f"config.json: {dim} of head_dim = {head_dim} would be rotated; only an even number up to head_dim can be")
    if kind == "plain":
        return Rope("plain", values.number("rope_theta"), dim)
    return _scaled(config, values, given, Rope(kind, values.number("rope_theta"), dim))


def _scaled(config: HfConfig, values: HfConfig, given: Config, plain: Rope) -> Rope:
    """The same with the numbers of its scaling."""
    kind, max_position = plain.kind, values.count("max_position_embeddings")
    # Where both are given the config's own field comes before the one inside rope_scaling (Phi-3 keeps the true one there).
    original = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings") or max_position
    factor: Any = given.get("factor")
    if factor is None and kind in ("yarn", "longrope"):
        factor = max_position / original
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
        raise UnsupportedModel(f"config.json: rope_type = {kind!r} needs a positive number as factor, not {factor!r}")
    short, long = (tuple(float(value) for value in given.get(key) or ()) for key in ("short_factor", "long_factor"))
    if kind == "longrope" and (len(short) != plain.dim // 2 or len(long) != plain.dim // 2):
        raise UnsupportedModel(
            f"config.json: longrope needs {plain.dim // 2} numbers as short_factor and as long_factor, not {len(short)} and {len(long)}"
        )
    return Rope(
        kind, plain.theta, plain.dim, float(factor), max_position, original, values.optional("attention_factor"),
        low_freq_factor=values.number("low_freq_factor", 1.0), high_freq_factor=values.number("high_freq_factor", 4.0),
        beta_fast=values.number("beta_fast", 32.0), beta_slow=values.number("beta_slow", 1.0),
        mscale=values.number("mscale", 0.0), mscale_all_dim=values.number("mscale_all_dim", 0.0),
        truncate=bool(given.get("truncate", True)), short_factor=short, long_factor=long,
    )  # fmt: skip
