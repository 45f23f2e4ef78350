"""Multi-head latent attention as a config asks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.config.hf_config import HfConfig
from octavo.config.rope import Rope


@dataclass(frozen=True)
class Latent:
    """Keys and values of all heads come from one vector a token, beside which a part of the key is kept that all heads share and that
    alone carries position (DeepSeek-V2, arXiv 2405.04434). All are numbers of dimensions."""

    rank: int  # the vector
    rotated: int  # the shared part of a key
    plain: int  # of each head's query and key without position
    value: int  # of each head's value
    q_rank: int | None  # of a vector that queries come from; None: they come from the hidden state

    @property
    def width(self) -> int:
        """Numbers kept for a token."""
        return self.rank + self.rotated


def no_latent(config: HfConfig) -> Latent | None:
    """Keys and values of their own."""
    return None


def deepseek(config: HfConfig) -> Latent | None:
    """V2 and V3."""
    q_rank = None if config.values.get("q_lora_rank") is None else config.count("q_lora_rank")
    return Latent(
        rank=config.count("kv_lora_rank"), rotated=config.count("qk_rope_head_dim"), plain=config.count("qk_nope_head_dim"),
        value=config.count("v_head_dim"), q_rank=q_rank,
    )  # fmt: skip


def latent_scale(head_dim: int, rope: Rope) -> float:
    """What q @ k is multiplied by: where the rope is stretched, scores grow with it (`mscale_all_dim` of YaRN)."""
    grown = rope.kind != "plain" and rope.mscale_all_dim and rope.factor > 1
    return head_dim**-0.5 * ((0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2 if grown else 1.0)
