"""What a model is, read from its Hugging Face `config.json`: shapes, norms, positions and windows as plain values. No torch.

The families are rows of data; a new one that computes in a known order is a row here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

Config = Mapping[str, Any]


class UnsupportedModel(ValueError):
    """The model's config asks for something that is not built, or lacks what is needed; the text says what would work."""


class Norms(Enum):
    """Where a layer has its norms."""

    PRE = "pre"  # before attention and before the MLP (Llama)
    POST = "post"  # after each, before the residual add (OLMo 2)
    BOTH = "both"  # before and after each (Gemma 2 and 3)


class QkNorm(Enum):
    """Over what q and k are normalised before they are rotated."""

    HEAD = "head"  # each head by itself (Qwen 3, Gemma 3)
    WIDTH = "width"  # all heads together (OLMo 2)


ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
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


@dataclass(frozen=True)
class LayerConfig:
    """What differs from layer to layer."""

    window: int | None  # a token attends this many newest tokens, itself included; None: all before it
    rope: Rope | None  # None: no position embedding


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer. `from_config` reads one from a config.json and raises `UnsupportedModel`."""

    family: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    layers: tuple[LayerConfig, ...]
    max_position: int  # max_position_embeddings as written
    max_length: int  # the longest context that the positions are good for, scaling included
    norm_eps: float
    norms: Norms
    norm_offset: float  # added to every norm weight (Gemma stores weight - 1)
    qk_norm: QkNorm | None
    activation: str  # a value of ACTIVATIONS
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    attention_scale: float  # multiplies q @ k
    attention_softcap: float | None
    logits_softcap: float | None
    logits_scale: float  # multiplies the logits
    embedding_scale: float  # multiplies the embeddings
    residual_scale: float  # multiplies what a layer adds to the residual stream
    dtype: str | None  # of the checkpoint, a torch dtype's name

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @staticmethod
    def from_config(config: Config) -> Architecture:
        """Read a config.json. The text of `UnsupportedModel` names the field, its value and what is supported."""
        return _read(config, _family(config))


Windows = Callable[[Config, int], tuple[int | None, ...]]


def _full(config: Config, num_layers: int) -> tuple[int | None, ...]:
    return (None,) * num_layers


def _same_window(config: Config, num_layers: int) -> tuple[int | None, ...]:
    return (config.get("sliding_window"),) * num_layers


def _windows_by_type(config: Config, num_layers: int, types: list[str]) -> tuple[int | None, ...]:
    types = list(config.get("layer_types") or types)
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModel(f"layer_types has {unknown}; supported are full_attention and sliding_attention")
    if len(types) != num_layers:
        raise UnsupportedModel(f"layer_types has {len(types)} entries for num_hidden_layers = {num_layers}")
    return tuple(config.get("sliding_window") if kind == "sliding_attention" else None for kind in types)


def _late_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Qwen 2 and 3: windows only where the config switches them on, and then from layer `max_window_layers` on."""
    if not config.get("use_sliding_window"):
        return _full(config, num_layers)
    first = config.get("max_window_layers", 28)
    return _windows_by_type(config, num_layers, ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)])


def _nope_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """SmolLM 3: windows, where switched on, are on the layers without positions."""
    if not config.get("use_sliding_window"):
        return _full(config, num_layers)
    rotated = _rotated_layers(config, num_layers)
    return _windows_by_type(config, num_layers, ["full_attention" if yes else "sliding_attention" for yes in rotated])


def _pattern_windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """Gemma: every `sliding_window_pattern`-th layer sees everything, the others a window."""
    every = config.get("sliding_window_pattern") or config["_pattern"]
    types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(num_layers)]
    return _windows_by_type(config, num_layers, types)


def _rotated_layers(config: Config, num_layers: int) -> tuple[bool, ...]:
    """SmolLM 3's `no_rope_layers` holds 1 where a layer does have positions."""
    given = config.get("no_rope_layers")
    if given is None:
        every = config.get("no_rope_layer_interval", 4)
        return tuple((i + 1) % every != 0 for i in range(num_layers))
    return tuple(bool(value) for value in given[:num_layers])


@dataclass(frozen=True)
class Family:
    """One row: what `config.json` does not say, because the model's code says it."""

    name: str  # the config's model_type
    architectures: tuple[str, ...]
    defaults: Config = field(default_factory=dict[str, Any])  # for keys that a config may leave out
    windows: Windows = _full
    norms: Norms = Norms.PRE
    norm_offset: float = 0.0
    qk_norm: QkNorm | None = None
    qkv_bias: bool | None = None  # None: as attention_bias says
    o_bias: bool | None = None
    scaled_embeddings: bool = False  # by sqrt(hidden)
    rope_aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    scaled_limit: bool = True  # whether max_position_embeddings grows by a linear factor; False: it is final already


_COMMON: Config = {
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_QWEN: Config = {"max_position_embeddings": 32768, "sliding_window": 4096}
_GEMMA: Config = {
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
    "query_pre_attn_scalar": 256, "sliding_window": 4096,
}  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family("llama", ("LlamaForCausalLM",)),
    Family(
        "mistral", ("MistralForCausalLM",), {"max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
        _same_window,
    ),
    Family("qwen2", ("Qwen2ForCausalLM",), _QWEN, _late_windows, qkv_bias=True, o_bias=False),
    Family("qwen3", ("Qwen3ForCausalLM",), {**_QWEN, "head_dim": 128}, _late_windows, qk_norm=QkNorm.HEAD),
    Family(
        "smollm3", ("SmolLM3ForCausalLM",), {"max_position_embeddings": 32768, "rope_theta": 2e6, "tie_word_embeddings": True},
        _nope_windows,
    ),
    Family(
        "phi3", ("Phi3ForCausalLM",), {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}, _same_window,
        rope_aliases={"su": "longrope", "yarn": "longrope"},
    ),
    Family("granite", ("GraniteForCausalLM",), {"attention_multiplier": 1.0}),
    Family("olmo2", ("Olmo2ForCausalLM",), {"rms_norm_eps": 1e-5}, norms=Norms.POST, qk_norm=QkNorm.WIDTH),
    Family(
        "gemma2", ("Gemma2ForCausalLM",), {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "_pattern": 2},
        _pattern_windows, norms=Norms.BOTH, norm_offset=1.0, scaled_embeddings=True,
    ),
    Family(
        "gemma3_text", ("Gemma3ForCausalLM",), {**_GEMMA, "max_position_embeddings": 131072, "rope_theta": 1e6, "_pattern": 6},
        _pattern_windows, norms=Norms.BOTH, norm_offset=1.0, qk_norm=QkNorm.HEAD, scaled_embeddings=True, scaled_limit=False,
    ),
)  # fmt: skip


def supported() -> str:
    return ", ".join(f"{family.architectures[0]} ({family.name})" for family in FAMILIES)


def _family(config: Config) -> Family:
    names = config.get("architectures") or ()
    model_type = config.get("model_type")
    for family in FAMILIES:
        if any(name in family.architectures for name in names) or (not names and family.name == model_type):
            return family
    raise UnsupportedModel(f"architectures = {list(names)}, model_type = {model_type!r} is not supported; supported are: {supported()}")


class _Reader:
    """Looks keys up in the config, then in the family's defaults, and complains by name."""

    def __init__(self, config: Config, family: Family) -> None:
        self.values: dict[str, Any] = {**_COMMON, **family.defaults, **config}

    def count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnsupportedModel(f"config.json: {key} = {value!r}, but a positive integer is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UnsupportedModel(f"config.json: {key} = {value!r}, but a number is needed")
        return float(value)

    def optional(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        return bool(self.values.get(key, False))


def _read(config: Config, family: Family) -> Architecture:
    read = _Reader(config, family)
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    kv_heads = read.count("num_key_value_heads", heads)
    head_dim = read.count("head_dim", hidden // heads)
    num_layers = read.count("num_hidden_layers")
    if heads % kv_heads:
        raise UnsupportedModel(f"config.json: num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    if read.flag("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: use_bidirectional_attention = true is not supported, only causal attention is")
    windows = family.windows(read.values, num_layers)
    ropes = _ropes(read, family, head_dim, windows)
    scale = read.optional("attention_multiplier")
    if scale is None:
        scale = read.number("query_pre_attn_scalar", head_dim) ** -0.5
    attention_bias = read.flag("attention_bias")
    return Architecture(
        family=family.name, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate=read.count("intermediate_size"), vocab=read.count("vocab_size"),
        layers=tuple(LayerConfig(window, rope) for window, rope in zip(windows, ropes)),
        max_position=read.count("max_position_embeddings"),
        max_length=_max_length(read.count("max_position_embeddings"), ropes, family),
        norm_eps=read.number("rms_norm_eps"), norms=family.norms, norm_offset=family.norm_offset, qk_norm=family.qk_norm,
        activation=_activation(read),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.o_bias is None else family.o_bias,
        mlp_bias=read.flag("mlp_bias"),
        tied_embeddings=read.flag("tie_word_embeddings"),
        attention_scale=scale, attention_softcap=read.optional("attn_logit_softcapping"),
        logits_softcap=read.optional("final_logit_softcapping"), logits_scale=1.0 / read.number("logits_scaling", 1.0),
        embedding_scale=hidden**0.5 if family.scaled_embeddings else read.number("embedding_multiplier", 1.0),
        residual_scale=read.number("residual_multiplier", 1.0),
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )  # fmt: skip


def _activation(read: _Reader) -> str:
    asked = read.values.get("hidden_activation") or read.values.get("hidden_act")
    if asked not in ACTIVATIONS:
        raise UnsupportedModel(f"config.json: hidden_act = {asked!r} is not supported; supported are {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[asked]


def _ropes(read: _Reader, family: Family, head_dim: int, windows: tuple[int | None, ...]) -> tuple[Rope | None, ...]:
    """One rope a layer. A config gives one for all (`rope_theta` with `rope_scaling`, or `rope_parameters`) or one by layer type."""
    given = cast("Config", read.values.get("rope_scaling") or read.values.get("rope_parameters") or {})
    by_type = {kind: given[kind] for kind in ("full_attention", "sliding_attention") if kind in given}
    if by_type or family.name == "gemma3_text":
        local = {"rope_theta": read.number("rope_local_base_freq", 10000.0)}
        full = _rope(read, family, head_dim, by_type.get("full_attention") or ({} if by_type else given))
        sliding = _rope(read, family, head_dim, {**local, **(by_type.get("sliding_attention") or {})})
        return tuple(full if window is None else sliding for window in windows)
    rope = _rope(read, family, head_dim, given)
    if family.name == "smollm3":
        return tuple(rope if rotated else None for rotated in _rotated_layers(read.values, len(windows)))
    return (rope,) * len(windows)


def _rope(read: _Reader, family: Family, head_dim: int, given: Config) -> Rope:
    asked = given.get("rope_type") or given.get("type") or "default"
    kind = family.rope_aliases.get(asked, "plain" if asked == "default" else asked)
    if kind not in ROPE_KINDS:
        raise UnsupportedModel(f"config.json: rope_type = {asked!r} is not supported; supported are {', '.join(ROPE_KINDS)}")
    values = _Reader({**read.values, **given}, family)
    dim = int(head_dim * values.number("partial_rotary_factor", 1.0))
    if dim < 2 or dim % 2 or dim > head_dim:
        raise UnsupportedModel(f"config.json: {dim} of head_dim = {head_dim} would be rotated; only an even number up to head_dim can be")
    max_position = values.count("max_position_embeddings")
    # Where both are given the config's own field comes before the one inside rope_scaling (Phi-3 keeps the true one there).
    original = read.values.get("original_max_position_embeddings") or given.get("original_max_position_embeddings") or max_position
    theta = values.number("rope_theta")
    if kind == "plain":
        return Rope("plain", theta, dim)
    factor = given.get("factor")
    if factor is None and kind in ("yarn", "longrope"):
        factor = max_position / original
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor <= 0:
        raise UnsupportedModel(f"config.json: rope_type = {asked!r} needs a positive number as factor, not {factor!r}")
    short, long = (tuple(float(value) for value in given.get(key) or ()) for key in ("short_factor", "long_factor"))
    if kind == "longrope" and (len(short) != dim // 2 or len(long) != dim // 2):
        raise UnsupportedModel(
            f"config.json: longrope needs {dim // 2} numbers as short_factor and as long_factor, not {len(short)} and {len(long)}"
        )
    return Rope(
        kind, theta, dim, float(factor), max_position, original, values.optional("attention_factor"),
        low_freq_factor=values.number("low_freq_factor", 1.0), high_freq_factor=values.number("high_freq_factor", 4.0),
        beta_fast=given.get("beta_fast") or 32.0, beta_slow=given.get("beta_slow") or 1.0,
        mscale=given.get("mscale") or 0.0, mscale_all_dim=given.get("mscale_all_dim") or 0.0,
        truncate=given.get("truncate", True), short_factor=short, long_factor=long,
    )  # fmt: skip


def _max_length(max_position: int, ropes: tuple[Rope | None, ...], family: Family) -> int:
    """How far positions reach. YaRN counts from the original length, so a config whose limit is already scaled is not scaled twice."""
    if not family.scaled_limit:
        return max_position
    for rope in ropes:
        if rope is not None and rope.kind in ("linear", "dynamic"):
            return int(max_position * rope.factor)
        if rope is not None and rope.kind == "yarn":
            return int(rope.original_max_position * rope.factor)
    return max_position
