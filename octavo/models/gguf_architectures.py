"""From GGUF to Hugging Face: the names of tensors and the form of config.json, by architecture. The one place that knows both.

GGUF's side: https://github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py (keys, tensor names) and its conversion scripts (which
rows they reorder, what they add to norm weights).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.models.gguf_reader import GGUFFile
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

COMMON_KEYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta",
}  # fmt: skip


def architecture_of(file: GGUFFile) -> Architecture:
    """The architecture a file declares. Raises `CheckpointError` for one that is not known."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise CheckpointError(f"{file.path}: GGUF architecture {name!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[name]


def hugging_face_config(file: GGUFFile) -> dict[str, Any]:
    """The header's hyperparameters in the form of a Hugging Face config.json."""
    architecture, prefix = architecture_of(file), file.metadata["general.architecture"] + "."
    values = {key[len(prefix) :]: _plain(value) for key, value in file.metadata.items() if key.startswith(prefix)}
    config: dict[str, Any] = {
        "architectures": [architecture.class_name], "model_type": architecture.model_type, "hidden_act": "silu", "rope_theta": 10000.0,
        **architecture.fixed,
    }  # fmt: skip
    for key, name in {**COMMON_KEYS, **architecture.keys}.items():
        if key in values:
            config[name] = _uniform(file, prefix + key, values[key])
    needed = [key for key, name in COMMON_KEYS.items() if name not in config]
    if needed:
        raise CheckpointError(f"{file.path}: the header lacks {', '.join(prefix + key for key in needed)}")
    heads = config["num_attention_heads"]
    if heads < 1:
        raise CheckpointError(f"{file.path}: {prefix}attention.head_count = {heads} is not possible")
    config["num_key_value_heads"] = _uniform(file, prefix + "attention.head_count_kv", values.get("attention.head_count_kv", heads))
    config["head_dim"] = values.get("attention.key_length", config["hidden_size"] // heads)
    rotary = values.get("rope.dimension_count", config["head_dim"])
    if rotary != config["head_dim"]:
        config["partial_rotary_factor"] = rotary / config["head_dim"]
    config["vocab_size"] = _vocab_size(file, values)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_output.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_down.bias" in file.tensors
    config["torch_dtype"] = _dtype(file)
    for token in ("bos", "eos", "padding"):
        if (number := file.metadata.get(f"tokenizer.ggml.{token}_token_id")) is not None:
            config["pad_token_id" if token == "padding" else f"{token}_token_id"] = int(number)
    scaling = _rope_scaling(file, values, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(_layers(architecture.model_type, values, config))
    return config


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
            if interleaved_heads < 1 or rows % (2 * interleaved_heads):
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


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _uniform(file: GGUFFile, key: str, value: Any) -> Any:
    """A hyperparameter that may be given for each layer, where all layers must agree."""
    if not isinstance(value, list):
        return value
    if not value or any(entry != value[0] for entry in value):
        raise CheckpointError(f"{file.path}: {key} differs between layers ({value[:8]}), which is not supported")
    return value[0]


def _vocab_size(file: GGUFFile, values: Mapping[str, Any]) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return embedding.shape[0]
    size = values.get("vocab_size") or len(file.metadata.get("tokenizer.ggml.tokens", ()))
    if not size:
        raise CheckpointError(f"{file.path}: neither token_embd.weight nor a vocabulary says how many tokens there are")
    return size


def _dtype(file: GGUFFile) -> str:
    """The type to compute in: that of the plain matrices; packed ones come from bfloat16 as a rule."""
    kinds = {stored.block.name for stored in file.tensors.values() if len(stored.shape) == 2}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(kinds), "bfloat16")


def _rope_scaling(file: GGUFFile, values: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` as Hugging Face writes it. May add `original_max_position_embeddings` to the config, where longrope wants it."""
    if "rope_freqs.weight" in file.tensors:
        return _from_frequency_factors(_floats(file, "rope_freqs.weight"), config)
    kind, factor = values.get("rope.scaling.type", "none"), values.get("rope.scaling.factor")
    original = values.get("rope.scaling.original_context_length")
    if "rope_factors_long.weight" in file.tensors:
        config["original_max_position_embeddings"] = original or config["max_position_embeddings"]
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        for name in ("short", "long"):
            scaling[f"{name}_factor"] = _floats(file, f"rope_factors_{name}.weight").tolist()
        if (attention := values.get("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = attention
        return scaling
    if kind == "none" or factor is None:
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{file.path}: rope scaling {kind!r} is not supported")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


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


def _layers(model_type: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from layer to layer or follows from the model's size, which the header leaves to the reader."""
    num_layers = config["num_hidden_layers"]
    if model_type == "smollm3":
        return {"no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(num_layers)]}  # 0: this layer has no rotary positions
    if model_type not in ("gemma2", "gemma3_text"):
        return {}
    largest = num_layers == {"gemma2": 46, "gemma3_text": 62}[model_type]  # only the 27B models scale by width over heads
    period = 2 if model_type == "gemma2" else 6
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"],
        "layer_types": ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(num_layers)],
    }
