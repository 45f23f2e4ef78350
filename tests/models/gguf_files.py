"""Small GGUF files written with gguf-py, for the tests of reading them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_gguf(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray], kinds: Mapping[str, str] | None = None
) -> Path:
    """Write `tensors` under their GGUF names; those named in `kinds` are quantised, unless they are bytes and so blocks already, the others
    stored in their own type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add(writer, key, value)
    for name, values in tensors.items():
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, values if values.dtype == np.uint8 else gguf.quants.quantize(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def hyperparameters(architecture: str, **more: Any) -> dict[str, Any]:
    """Of a model of 2 layers, 4 heads over 2 KV heads of 8, hidden 32."""
    values = {
        "block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 64, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, **more,
    }  # fmt: skip
    return {f"{architecture}.{key}": value for key, value in values.items()}


def llama_tensors(seed: int = 0, vocab: int = 48) -> dict[str, np.ndarray]:
    """Random float32 weights of that model under GGUF names, rows of q and k as they lie in the file."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (vocab, 32), "output_norm": (32,)}
    for layer in range(2):
        inner = {"attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
                 "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inner.items()}
    return {f"{name}.weight": rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
