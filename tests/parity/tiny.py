"""A model small enough for any test."""

from octavo.config.architecture import Architecture
from octavo.config.families import FAMILIES
from octavo.config.resolved import Resolved

SETTINGS = Resolved(max_model_len=128, optimization_level=0)


def tiny(family: str = "llama", **changes: object) -> Architecture:
    row = next(row for row in FAMILIES if row.name == family)
    return Architecture.from_config({
        "architectures": list(row.architectures), "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 128, **changes,
    })  # fmt: skip
