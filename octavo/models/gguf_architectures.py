"""From GGUF to Hugging Face: the names of tensors and the form of config.json, by architecture. The one place that knows both.

GGUF's side: https://github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py (keys, tensor names) and its conversion scripts (which
rows they reorder, what they add to norm weights).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.models.gguf_reader import GGUFFile, Texts
from octavo.models.tensors import CheckpointError, LazyTensor

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
AFTER_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # they become rope_scaling in the config


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture. `names` overrides INNER; `keys` maps GGUF keys (without the prefix) to config keys; `fixed` is always so."""

    model_type: str
    class_name: str
    interleaved: bool = False  # q and k rows lie in Llama's GGUF order
    norm_shift: float = 0.0  # added to norm weights to undo the conversion
    names: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


SOFTCAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
GEMMA_NAMES = {**AFTER_NORMS, "ffn_norm": "pre_feedforward_layernorm"}
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "phi3": Architecture(
        "phi3", "Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, keys={"attention.sliding_window": "sliding_window"}
    ),
    "gemma2": Architecture(
        "gemma2", "Gemma2ForCausalLM", norm_shift=-1.0, names=GEMMA_NAMES, fixed=GEMMA,
        keys={"attention.sliding_window": "sliding_window", **SOFTCAPS},
    ),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", norm_shift=-1.0, names=GEMMA_NAMES, fixed={**GEMMA, "rope_local_base_freq": 10000.0},
        keys={"attention.sliding_window": "sliding_window", "rope.freq_base_swa": "rope_local_base_freq", **SOFTCAPS},
    ),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", interleaved=True),
    "granite": Architecture(
        "granite", "GraniteForCausalLM", interleaved=True,
        keys={"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
              "attention.scale": "attention_multiplier", "logit_scale": "logits_scaling"},
    ),
    "olmo2": Architecture("olmo2", "Olmo2ForCausalLM", names=AFTER_NORMS),
}  # fmt: skip

MAX_LAYERS = 10_000


def architecture_of(file: GGUFFile) -> Architecture:
    """The architecture a file declares. Raises `CheckpointError` for one that is not known."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise CheckpointError(f"{file.path}: GGUF architecture {name!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[name]


def hugging_face_config(file: GGUFFile) -> dict[str, Any]:
    """The header's hyperparameters in the form of a Hugging Face config.json."""
    architecture, header = architecture_of(file), _Header(file)
    if architecture.model_type == "olmo2" and header.has("attention.sliding_window"):
        raise header.refuse("attention.sliding_window", "an olmo2 file with windows is OLMo 3, which is not supported")
    heads, hidden = header.count("attention.head_count"), header.count("embedding_length")
    head_dim = header.count("attention.key_length", hidden // heads)
    rotary = header.count("rope.dimension_count", head_dim)
    num_layers = header.count("block_count", most=MAX_LAYERS)
    config: dict[str, Any] = {
        "architectures": [architecture.class_name], "model_type": architecture.model_type, "hidden_act": "silu", **architecture.fixed,
        "hidden_size": hidden, "intermediate_size": header.count("feed_forward_length"), "num_hidden_layers": num_layers,
        "num_attention_heads": heads, "num_key_value_heads": header.count("attention.head_count_kv", heads), "head_dim": head_dim,
        "max_position_embeddings": header.count("context_length"), "vocab_size": _vocab_size(header),
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"), "rope_theta": header.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors, "torch_dtype": _dtype(file),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        **{name: header.number(key) for key, name in architecture.keys.items() if header.has(key)},
        "quantization_config": {"quant_method": "gguf", "tensors": _packed(file)},
        **_special_ids(file), **_layers(architecture.model_type, num_layers, hidden // heads, head_dim),
    }  # fmt: skip
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    if not config.get("sliding_window", True):  # 0: no window, as Phi-4 writes it
        del config["sliding_window"]
    return config | _rope_scaling(header, config)


class _Header:
    """The hyperparameters of one architecture, read by key without its prefix. What is missing or of a wrong kind is refused by name."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.prefix = file, file.metadata["general.architecture"] + "."

    def refuse(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {self.prefix}{key}: {why}")

    def has(self, key: str) -> bool:
        return self.prefix + key in self.file.metadata

    def get(self, key: str) -> Any:
        """The value; where one is given for each layer, all must agree."""
        value = self.file.metadata.get(self.prefix + key)
        values = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(values, list):
            return values
        if not values or any(entry != values[0] for entry in values):
            raise self.refuse(key, f"it differs between layers ({values[:8]}), which is not supported")
        return values[0]

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key) if self.has(key) else default
        if value is None:
            raise self.refuse(key, "it is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.refuse(key, f"{value!r} is not a number")
        return value

    def count(self, key: str, default: int | None = None, most: int = 2**31) -> int:
        value = self.number(key, default)
        if not isinstance(value, int) or not 1 <= value <= most:
            raise self.refuse(key, f"{value!r} is not a whole number from 1 to {most}")
        return value


def hugging_face_tensors(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Every tensor of the file under its Hugging Face name, except those that the config carries. Raises for a name that is not known."""
    architecture = architecture_of(file)
    found: dict[str, LazyTensor] = {}
    for name, stored in file.tensors.items():
        if name in DERIVED:
            continue
        interleaved_heads = 0
        if architecture.interleaved and (match := re.search(r"\.attn_([qk])\.", name)):
            interleaved_heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
            rows = stored.shape[0] if stored.shape else 0
            packed = len(stored.shape) < 2 and stored.block.values > 1  # then a block holds values that belong to different places
            if packed or interleaved_heads < 1 or rows % (2 * interleaved_heads):
                raise CheckpointError(f"{file.path}: tensor {name!r} has {rows} rows, which do not make {interleaved_heads} heads")
        found[_hugging_face_name(file, architecture, name)] = LazyTensor(
            shape=stored.shape,
            storage=stored.block.name,
            data=file.data[stored.offset : stored.offset + stored.num_bytes],
            interleaved_heads=interleaved_heads,
            shift=architecture.norm_shift if name.endswith("norm.weight") else 0.0,
        )
    return found


def _hugging_face_name(file: GGUFFile, architecture: Architecture, name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    known = {**INNER, **architecture.names} if match and match[1] else OUTER
    if match is None or match[2] not in known:
        raise CheckpointError(f"{file.path}: tensor {name!r} is not known in architecture {architecture.model_type}")
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{known[match[2]]}.{match[3]}"


def _vocab_size(header: _Header) -> int:
    embedding = header.file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return embedding.shape[0]
    tokens = header.file.metadata.get("tokenizer.ggml.tokens", ())
    return header.count("vocab_size", len(tokens) if isinstance(tokens, Texts) else 0)


def _special_ids(file: GGUFFile) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    given = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {name: value for name, value in given.items() if isinstance(value, int) and not isinstance(value, bool)}


def _dtype(file: GGUFFile) -> str:
    """The type to compute in: that of the plain matrices; packed ones come from bfloat16 as a rule."""
    kinds = {stored.block.name for stored in file.tensors.values() if len(stored.shape) == 2}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")


def _packed(file: GGUFFile) -> dict[str, tuple[int, int]]:
    """Numbers and bytes of all tensors that lie in blocks, by kind of block."""
    totals: dict[str, tuple[int, int]] = {}
    for stored in file.tensors.values():
        if stored.block.values > 1:
            num_values, num_bytes = totals.get(stored.block.name, (0, 0))
            totals[stored.block.name] = (num_values + math.prod(stored.shape), num_bytes + stored.num_bytes)
    return totals


def _rope_scaling(header: _Header, config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` as Hugging Face writes it, with `original_max_position_embeddings` beside it where longrope wants that."""
    if "rope_freqs.weight" in header.file.tensors:
        return {"rope_scaling": _from_frequency_factors(_floats(header.file, "rope_freqs.weight"), config)}
    original = header.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    if "rope_factors_long.weight" in header.file.tensors:
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        for name in ("short", "long"):
            scaling[f"{name}_factor"] = _floats(header.file, f"rope_factors_{name}.weight").tolist()
        if header.has("rope.scaling.attn_factor"):
            scaling["attention_factor"] = header.number("rope.scaling.attn_factor")
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    kind = header.get("rope.scaling.type") or "none"
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise header.refuse("rope.scaling.type", f"{kind!r} is not supported; supported: none, linear, yarn")
    scaling = {"rope_type": kind, "factor": header.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
    return {"rope_scaling": scaling}


def _from_frequency_factors(factors: np.ndarray, config: Mapping[str, Any]) -> dict[str, Any]:
    """The divisors of the rotary frequencies, back as the rule that made them.

    Llama 3's rule with its usual constants is tried; any others are given as they are, in the form of longrope without an attention factor.
    """
    rotary = 2 * len(factors)
    wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(0, rotary, 2) / rotary)
    factor, low, high, original = float(factors.max()), 1.0, 4.0, 8192
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    if np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        return {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original}  # fmt: skip
    same = factors.tolist()
    return {"rope_type": "longrope", "short_factor": same, "long_factor": same, "factor": 1.0, "attention_factor": 1.0}


def _floats(file: GGUFFile, name: str) -> np.ndarray:
    stored = file.tensors.get(name)
    if stored is None or stored.block.name != "F32":
        raise CheckpointError(f"{file.path}: {name} must be there as F32")
    return np.frombuffer(file.data, np.float32, stored.num_bytes // 4, stored.offset)


def _layers(model_type: str, num_layers: int, hidden_per_head: int, head_dim: int) -> dict[str, Any]:
    """What differs from layer to layer or follows from the model's size, which the header leaves to the reader."""
    if model_type == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(num_layers)]}  # 0: this layer has no rotary positions
    if model_type not in ("gemma2", "gemma3_text"):
        return {}
    largest = num_layers == {"gemma2": 46, "gemma3_text": 62}[model_type]  # only the 27B models scale by width over heads
    period = 2 if model_type == "gemma2" else 6
    return {
        "query_pre_attn_scalar": hidden_per_head if largest else head_dim,
        "layer_types": ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(num_layers)],
    }
