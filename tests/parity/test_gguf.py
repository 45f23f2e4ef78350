"""Every architecture through a GGUF file, converted as llama.cpp's scripts do it: the logits are still those of transformers' model."""

import gguf
import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import open_checkpoint
from octavo.models.gguf_architectures import ARCHITECTURES
from octavo.models.load import load
from octavo.models.registry import build_model
from tests.models.gguf_files import write_gguf
from tests.parity.memory import Memory, random_tokens

# GGUF architecture -> model type of transformers, its config, and what only this architecture's header says
MODELS = {
    "llama": ("llama", {"attention_bias": True}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 16}, {}),
    "phi3": ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 11}, {"attention.sliding_window": 11, "rope.dimension_count": 6}),
    "gemma2": (
        "gemma2", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16},
        {"attention.sliding_window": 6, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "gemma3_text", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
        {"attention.sliding_window": 6, "rope.freq_base": 1e6},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}, {"rope.freq_base": 2e6}),
    "granite": (
        "granite", {"attention_multiplier": 0.125, "logits_scaling": 4.0, "residual_multiplier": 0.25, "embedding_multiplier": 6.0},
        {"attention.scale": 0.125, "logit_scale": 4.0, "residual_scale": 0.25, "embedding_scale": 6.0},
    ),
    "olmo2": ("olmo2", {}, {}),
}  # fmt: skip
WOVEN = ("llama", "smollm3", "granite")  # q and k rows change places on the way into the file
RAISED = ("gemma2", "gemma3")  # norm weights are stored with 1 added


def convert(path, architecture, config, tensors, header):
    """Write a model of transformers as its GGUF file."""
    number = next(value for value, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    stored = {}
    for name, tensor in tensors.items():
        values = tensor.load(torch.float32)
        if architecture in WOVEN and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            values = values.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if architecture in RAISED and name.endswith("norm.weight"):
            values = values + 1
        stored[names.get_name(name, try_suffixes=(".weight", ".bias"))] = values.numpy()
    keys = {
        "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attention.key_length": "head_dim",
    }  # fmt: skip
    values = {key: config[name] for key, name in keys.items() if config.get(name) is not None} | header
    return write_gguf(path, architecture, {f"{architecture}.{key}": value for key, value in values.items()}, stored)


def test_no_architecture_is_left_out():
    assert MODELS.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", MODELS)
def test_logits_through_a_gguf_file(architecture, make_pair, tmp_path):
    model_type, config, header = MODELS[architecture]
    pair = make_pair(model_type, **config)
    path = convert(tmp_path / "model.gguf", architecture, pair.config, pair.tensors, header)
    checkpoint = open_checkpoint(str(path))
    model = build_model(Architecture.from_config(checkpoint.config), Resolved(max_model_len=512, optimization_level=0))
    load(model, checkpoint.tensors())
    tokens = random_tokens(40)
    torch.testing.assert_close(Memory(model, 16).run(tokens, [40]), pair.their_logits(tokens), atol=1e-4, rtol=0)
