"""Model families as rows of data: what their code says and their `config.json` does not.

A new family that computes in a known order is a row here and a line in `models/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from octavo.config import experts, latent
from octavo.config.experts import ExpertsByLayer, no_experts
from octavo.config.hf_config import Config, HfConfig, UnsupportedModel
from octavo.config.latent import Latent, no_latent


class Norms(Enum):
    """Where a layer has its norms."""

    PRE = "pre"  # before attention and before the MLP (Llama)
    POST = "post"  # after each, before the residual add (OLMo 2)
    BOTH = "both"  # before and after each (Gemma 2 and 3)


class QkNorm(Enum):
    """Over what q and k are normalised before they are rotated."""

    HEAD = "head"  # each head by itself (Qwen 3, Gemma 3)
    WIDTH = "width"  # all heads together (OLMo 2)


Windows = tuple[int | None, ...]  # one a layer; None: it sees everything before it


def full(config: HfConfig, num_layers: int) -> Windows:
    return (None,) * num_layers


def same_window(config: HfConfig, num_layers: int) -> Windows:
    return (_window(config),) * num_layers


def switched_window(config: HfConfig, num_layers: int) -> Windows:
    """Qwen 3 MoE: the same window everywhere, where the config switches it on."""
    return same_window(config, num_layers) if config.flag("use_sliding_window") else full(config, num_layers)


def late_windows(config: HfConfig, num_layers: int) -> Windows:
    """Qwen 2 and 3: windows only where the config switches them on, and then from layer `max_window_layers` on."""
    first = config.get("max_window_layers", 28)
    return _by_type(config, [i >= first for i in range(num_layers)]) if config.flag("use_sliding_window") else full(config, num_layers)


def windows_without_rope(config: HfConfig, num_layers: int) -> Windows:
    """SmolLM 3: windows, where switched on, are on the layers without positions."""
    plain = [not rotated for rotated in some_rotated(config, num_layers)]
    return _by_type(config, plain) if config.flag("use_sliding_window") else full(config, num_layers)


def pattern_windows(config: HfConfig, num_layers: int) -> Windows:
    """Gemma: every `sliding_window_pattern`-th layer sees everything, the others a window."""
    every = config.count("sliding_window_pattern", 1)
    return _by_type(config, [(i + 1) % every != 0 for i in range(num_layers)])


def turn_about_windows(config: HfConfig, num_layers: int) -> Windows:
    """GPT-OSS: every second layer sees everything, the first a window."""
    return _by_type(config, [i % 2 == 0 for i in range(num_layers)])


def _by_type(config: HfConfig, sliding: list[bool]) -> Windows:
    """As `layer_types` says, or where it is missing as `sliding` does."""
    types = config.get("layer_types") or ["sliding_attention" if yes else "full_attention" for yes in sliding]
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModel(f"config.json: layer_types has {unknown}; supported are full_attention and sliding_attention")
    if len(types) != len(sliding):
        raise UnsupportedModel(f"config.json: layer_types has {len(types)} entries for num_hidden_layers = {len(sliding)}")
    return tuple(_window(config) if kind == "sliding_attention" else None for kind in types)


def _window(config: HfConfig) -> int | None:
    return None if config.get("sliding_window") is None else config.count("sliding_window")


def all_rotated(config: HfConfig, num_layers: int) -> tuple[bool, ...]:
    return (True,) * num_layers


def some_rotated(config: HfConfig, num_layers: int) -> tuple[bool, ...]:
    """SmolLM 3's `no_rope_layers` holds 1 where a layer does have positions."""
    every = config.count("no_rope_layer_interval", 4)
    given = config.get("no_rope_layers") or [(i + 1) % every for i in range(num_layers)]
    if len(given) < num_layers:
        raise UnsupportedModel(f"config.json: no_rope_layers has {len(given)} entries for num_hidden_layers = {num_layers}")
    return tuple(bool(value) for value in given[:num_layers])


@dataclass(frozen=True)
class Family:
    """One row. `defaults` are for keys that a config may leave out."""

    name: str  # the config's model_type
    architectures: tuple[str, ...]
    defaults: Config = field(default_factory=dict[str, Any])
    windows: Callable[[HfConfig, int], Windows] = full
    rotated: Callable[[HfConfig, int], tuple[bool, ...]] = all_rotated  # which layers have positions
    experts: Callable[[HfConfig, int], ExpertsByLayer] = no_experts
    latent: Callable[[HfConfig], Latent | None] = no_latent
    norms: Norms = Norms.PRE
    norm_offset: float = 0.0
    qk_norm: QkNorm | None = None
    sinks: bool = False  # see Architecture
    qkv_bias: bool | None = None  # None: as attention_bias says
    o_bias: bool | None = None
    scaled_embeddings: bool = False  # by sqrt(hidden)
    local_theta: float | None = None  # layers with a window have a rope of their own, with this theta where the config gives none
    rope_aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    final_limit: bool = False  # max_position_embeddings has the scaling of the rope in it

    def read(self, config: Config) -> HfConfig:
        return HfConfig({**_COMMON, **self.defaults}, config)


_COMMON: Config = {
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_QWEN: Config = {"max_position_embeddings": 32768, "sliding_window": 4096}
_GPT_OSS_ROPE: Config = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip
_LATENT: Config = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_GEMMA: Config = {
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family("llama", ("LlamaForCausalLM",)),
    Family(
        "mistral", ("MistralForCausalLM",), {"max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
        windows=same_window,
    ),
    Family("qwen2", ("Qwen2ForCausalLM",), _QWEN, windows=late_windows, qkv_bias=True, o_bias=False),
    Family("qwen3", ("Qwen3ForCausalLM",), {**_QWEN, "head_dim": 128}, windows=late_windows, qk_norm=QkNorm.HEAD),
    Family(
        "mixtral", ("MixtralForCausalLM",),
        {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
         "num_key_value_heads": 8},
        windows=same_window, experts=experts.mixtral,
    ),
    Family(
        "qwen2_moe", ("Qwen2MoeForCausalLM",),
        {**_QWEN, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
        windows=late_windows, qkv_bias=True, o_bias=False, experts=experts.qwen_moe,
    ),
    Family(
        "qwen3_moe", ("Qwen3MoeForCausalLM",), {**_QWEN, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
        windows=switched_window, qk_norm=QkNorm.HEAD, experts=experts.qwen_moe,
    ),
    Family(
        "gpt_oss", ("GptOssForCausalLM",),
        {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128,
         "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4, "rope_parameters": _GPT_OSS_ROPE},
        windows=turn_about_windows, experts=experts.gpt_oss, sinks=True,
    ),
    Family(
        "deepseek_v2", ("DeepseekV2ForCausalLM",),
        {**_LATENT, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "num_experts_per_tok": 6},
        experts=experts.deepseek_v2, latent=latent.deepseek,
    ),
    Family(
        "deepseek_v3", ("DeepseekV3ForCausalLM",),
        {**_LATENT, "max_position_embeddings": 4096, "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048,
         "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
         "first_k_dense_replace": 3},
        experts=experts.deepseek_v3, latent=latent.deepseek,
    ),
    Family(
        "smollm3", ("SmolLM3ForCausalLM",), {"max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True},
        windows=windows_without_rope, rotated=some_rotated,
    ),
    Family(
        "phi3", ("Phi3ForCausalLM",), {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        windows=same_window, rope_aliases={"su": "longrope", "yarn": "longrope"},
    ),
    Family("granite", ("GraniteForCausalLM",), {"attention_multiplier": 1.0}),
    Family("olmo2", ("Olmo2ForCausalLM",), {"rms_norm_eps": 1e-5}, norms=Norms.POST, qk_norm=QkNorm.WIDTH),
    Family(
        "gemma2", ("Gemma2ForCausalLM",),
        {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2},
        windows=pattern_windows, norms=Norms.BOTH, norm_offset=1.0, scaled_embeddings=True,
    ),
    Family(
        "gemma3_text", ("Gemma3ForCausalLM",),
        {**_GEMMA, "max_position_embeddings": 131072, "rope_theta": 1e6, "sliding_window_pattern": 6},
        windows=pattern_windows, norms=Norms.BOTH, norm_offset=1.0, qk_norm=QkNorm.HEAD, scaled_embeddings=True, local_theta=10000.0,
        final_limit=True,
    ),
)  # fmt: skip


def supported() -> str:
    return ", ".join(f"{family.architectures[0]} ({family.name})" for family in FAMILIES)


def family_of(config: Config) -> Family:
    """The row that a config belongs to: by `architectures`, or by `model_type` where that is missing."""
    given: Any = config.get("architectures") or []
    names = cast("list[Any]", given if isinstance(given, list) else [given])
    model_type = config.get("model_type")
    for family in FAMILIES:
        if any(name in family.architectures for name in names) or (not names and family.name == model_type):
            return family
    raise UnsupportedModel(f"architectures = {names}, model_type = {model_type!r} is not supported; supported are: {supported()}")
