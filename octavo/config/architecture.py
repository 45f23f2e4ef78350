"""What a model is, read from its Hugging Face `config.json`: shapes, norms, positions and windows as plain values. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.experts import Experts
from octavo.config.families import Family, Norms, QkNorm, family_of
from octavo.config.hf_config import Config, HfConfig, UnsupportedModel
from octavo.config.latent import Latent, latent_scale
from octavo.config.rope import Rope, read_ropes

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


@dataclass(frozen=True)
class LayerConfig:
    """What differs from layer to layer."""

    window: int | None  # a token attends this many newest tokens, itself included; None: all before it
    rope: Rope | None  # None: no position embedding
    experts: Experts | None = None  # None: an MLP


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
    sinks: bool  # each head has a learned score that takes its part of the weight and has no value
    logits_softcap: float | None
    logits_scale: float  # multiplies the logits
    embedding_scale: float  # multiplies the embeddings
    residual_scale: float  # multiplies what a layer adds to the residual stream
    latent: Latent | None  # keys and values come from one vector a token; head_dim is then that of queries and keys
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

    @property
    def pair_dims(self) -> int:
        """Dimensions multiplied for a query head and a key that it sees: of the key, and of the value."""
        return 2 * self.head_dim if self.latent is None else self.latent.width + self.latent.rank

    @property
    def value_dim(self) -> int:
        """Of a head's result."""
        return self.head_dim if self.latent is None else self.latent.value

    @staticmethod
    def from_config(config: Config) -> Architecture:
        """Read a config.json. The text of `UnsupportedModel` names the field, its value and what is supported."""
        family = family_of(config)
        try:
            return _read(family.read(config), family)
        except UnsupportedModel:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UnsupportedModel(f"config.json does not have the form of a {family.name} model: {error}") from error


def _read(config: HfConfig, family: Family) -> Architecture:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    latent = family.latent(config)
    kv_heads = 1 if latent else config.count("num_key_value_heads", heads)
    head_dim = latent.plain + latent.rotated if latent else config.count("head_dim", hidden // heads)
    if heads % kv_heads:
        raise UnsupportedModel(f"config.json: num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}")
    if config.flag("use_bidirectional_attention"):
        raise UnsupportedModel("config.json: use_bidirectional_attention = true is not supported, only causal attention is")
    full, local = read_ropes(config, latent.rotated if latent else head_dim, family.rope_aliases, family.local_theta)
    max_position = config.count("max_position_embeddings")
    attention_bias = config.flag("attention_bias")
    return Architecture(
        family=family.name, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        intermediate=config.count("intermediate_size"), vocab=config.count("vocab_size"),
        layers=_layers(config, family, full, local),
        max_position=max_position, max_length=max_position if family.final_limit else full.reach(max_position),
        norm_eps=config.number("rms_norm_eps"), norms=family.norms, norm_offset=family.norm_offset, qk_norm=family.qk_norm,
        activation=_activation(config),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.o_bias is None else family.o_bias,
        mlp_bias=config.flag("mlp_bias"), tied_embeddings=config.flag("tie_word_embeddings"),
        attention_scale=(
            latent_scale(head_dim, full)
            if latent
            else config.number("attention_multiplier", config.number("query_pre_attn_scalar", head_dim) ** -0.5)
        ),
        attention_softcap=config.optional("attn_logit_softcapping"), sinks=family.sinks,
        logits_softcap=config.optional("final_logit_softcapping"), logits_scale=1.0 / config.number("logits_scaling", 1.0),
        embedding_scale=hidden**0.5 if family.scaled_embeddings else config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0), latent=latent,
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )  # fmt: skip


def _layers(config: HfConfig, family: Family, full: Rope, local: Rope) -> tuple[LayerConfig, ...]:
    num_layers = config.count("num_hidden_layers")
    windows, rotated = family.windows(config, num_layers), family.rotated(config, num_layers)
    ropes = [(full if window is None else local) if turned else None for window, turned in zip(windows, rotated)]
    return tuple(LayerConfig(*layer) for layer in zip(windows, ropes, family.experts(config, num_layers)))


def _activation(config: HfConfig) -> str:
    asked = config.get("hidden_activation") or config.get("hidden_act")
    if asked not in ACTIVATIONS:
        raise UnsupportedModel(f"config.json: hidden_act = {asked!r} is not supported; supported are {sorted(ACTIVATIONS)}")
    return ACTIVATIONS[asked]
