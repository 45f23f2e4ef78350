"""Names, row order and config of GGUF files. gguf-py's own name table and transformers' GGUF reader are the references."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.models.checkpoint import open_checkpoint
from octavo.models.gguf_architectures import ARCHITECTURES, hugging_face_config, hugging_face_tensors
from octavo.models.gguf_reader import read_gguf
from octavo.models.tensors import CheckpointError
from tests.models.gguf_files import hyperparameters, llama_tensors, write_gguf

EMBEDDING = {"token_embd.weight": np.zeros((8, 32), np.float32)}


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from Hugging Face's order to GGUF's: the two halves of each head are woven."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def tensor_names(architecture: str) -> tuple[int, list[str]]:
    """gguf-py's number of the architecture, and the tensors that a dense model of it may have in its layer 1 and outside."""
    number = next(value for value, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    unused = {"rope_freqs", "rope_factors_long", "rope_factors_short", "cls", "cls.output", "cls.norm"}
    unused |= {"attn_q", "attn_k", "attn_v", "ffn_gate"} if architecture == "phi3" else {"attn_qkv"}
    unused |= {"attn_rot_embd", "ffn_gate_inp", "dense_2", "dense_3"}
    templates = [gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[number]]
    wanted = [name for name in templates if name.split(".")[-1] not in unused and name not in unused and "exp" not in name]
    return number, [name.format(bid=1) + ".weight" for name in wanted]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_lead_back_to_the_file(architecture, tmp_path):
    """Each name given to a tensor is one that gguf-py's table turns into the name in the file."""
    number, names = tensor_names(architecture)
    zeros = {name: np.zeros((32, 32), np.float32) for name in names}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", architecture, hyperparameters(architecture), zeros))
    table = gguf.get_tensor_name_map(number, 2)
    found = hugging_face_tensors(file, hugging_face_config(file))
    assert len(found) == len(names) > 8
    for ours, theirs in zip(found, names):
        assert table.get_name(ours, try_suffixes=(".weight",)) == theirs


@pytest.mark.parametrize(
    ("architecture", "moved"),
    [("llama", True), ("granite", True), ("smollm3", True), ("qwen2", False), ("qwen3", False), ("olmo2", False), ("gemma2", False)],
)
def test_only_llamas_kin_have_their_rows_put_back(architecture, moved, tmp_path):
    q, k = (np.random.default_rng(i).standard_normal((rows, 32)).astype(np.float32) for i, rows in enumerate((32, 16)))
    stored = {"blk.0.attn_q.weight": interleave(q, 4) if moved else q, "blk.0.attn_k.weight": interleave(k, 2) if moved else k}
    path = write_gguf(tmp_path / "m.gguf", architecture, hyperparameters(architecture), {**EMBEDDING, **stored})
    tensors = open_checkpoint(str(path)).tensors()
    for name, values in (("q", q), ("k", k)):
        np.testing.assert_array_equal(tensors[f"model.layers.0.self_attn.{name}_proj.weight"].load().numpy(), values)


def test_packed_bytes_follow_the_row_order_too(tmp_path):
    q = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    tensors = {**EMBEDDING, "blk.0.attn_q.weight": interleave(q, 4)}
    path = write_gguf(tmp_path / "m.gguf", "llama", hyperparameters("llama"), tensors, {"blk.0.attn_q.weight": "Q8_0"})
    tensor = open_checkpoint(str(path)).tensors()["model.layers.0.self_attn.q_proj.weight"]
    assert (tensor.quantization, tensor.shape, tensor.num_bytes) == ("Q8_0", (32, 32), 32 * 34)
    np.testing.assert_array_equal(tensor.raw(), gguf.quants.quantize(q, gguf.GGMLQuantizationType.Q8_0))


def test_gemmas_norm_weights_lose_the_one_that_conversion_added(tmp_path):
    norm = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    tensors = {**EMBEDDING, "blk.0.attn_norm.weight": norm + 1, "blk.0.post_ffw_norm.weight": norm + 1}
    path = write_gguf(tmp_path / "m.gguf", "gemma2", hyperparameters("gemma2"), tensors)
    found = open_checkpoint(str(path)).tensors()
    for name in ("input_layernorm", "post_feedforward_layernorm"):
        np.testing.assert_allclose(found[f"model.layers.0.{name}.weight"].load(torch.float32).numpy(), norm, atol=1e-6)


def test_an_unknown_tensor_or_architecture_is_named(tmp_path):
    tensors = {**llama_tensors(), "blk.0.strange.weight": np.zeros(4, np.float32)}
    path = write_gguf(tmp_path / "t.gguf", "llama", hyperparameters("llama"), tensors)
    with pytest.raises(CheckpointError, match=r"blk\.0\.strange\.weight"):
        open_checkpoint(str(path)).tensors()
    path = write_gguf(tmp_path / "a.gguf", "rwkv6", {}, llama_tensors())
    with pytest.raises(CheckpointError, match=r"rwkv6.*supported: .*llama"):
        open_checkpoint(str(path))


@pytest.fixture(scope="module")
def bundled():
    return open_checkpoint("smollm2-135m")


def test_config_of_the_bundled_model(bundled):
    expected = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
                "vocab_size": 49152, "tie_word_embeddings": True, "rope_theta": 100000.0, "max_position_embeddings": 8192}  # fmt: skip
    assert {name: bundled.config[name] for name in expected} == expected


def test_weights_of_a_file_equal_transformers_reading(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    kinds = {name: kind for name, kind in zip(llama_tensors(), ["Q4_1", None, None, "Q8_0", "Q4_0", "Q5_1"]) if kind}
    path = write_gguf(tmp_path / "m.gguf", "llama", {**hyperparameters("llama"), "general.name": "small"}, llama_tensors(), kinds)
    checkpoint = open_checkpoint(str(path))
    shape = {key: checkpoint.config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    heads = {key: checkpoint.config[key] for key in ("num_attention_heads", "num_key_value_heads")}
    with torch.device("meta"):
        shell = LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True))
    expected = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shell)["tensors"]
    tensors = checkpoint.tensors()
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.load(torch.float32), expected[name]), name


@pytest.mark.parametrize(("stored", "name", "heads"), [("attn_q", "self_attn.q_proj", 9), ("attn_k", "self_attn.k_proj", 3)])
def test_rows_of_the_bundled_model_are_put_back(bundled, stored, name, heads):
    raw = bundled.gguf.tensors[f"blk.29.{stored}.weight"]
    data = bundled.gguf.data[raw.offset : raw.offset + raw.num_bytes].reshape(raw.shape[0], -1)
    rows = gguf.quants.dequantize(np.array(data), gguf.GGMLQuantizationType.Q4_1)
    found = bundled.tensors()[f"model.layers.29.{name}.weight"].load(torch.float32).numpy()
    np.testing.assert_array_equal(interleave(found, heads), rows)


HIDDEN, HEADS = 32, 4
SHAPE = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": HEADS, "num_key_value_heads": 2,
         "vocab_size": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}  # fmt: skip
LONG, SHORT = [1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.5, 2.0]
SIX = {"block_count": 6}


def llama3_factors(theta: float, dim: int, factor: float) -> np.ndarray:
    """The divisors that conversion writes for a Llama 3 rope of original length 8192."""
    found = []
    for step in range(0, dim, 2):
        wavelength = 2 * np.pi * theta ** (step / dim)
        smooth = (8192 / wavelength - 1) / 3
        found.append(1.0 if wavelength < 2048 else factor if wavelength > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


# architecture, the model's own config.json, what its GGUF header says beside the shape, extra tensors
CONFIGS = {
    "llama": ("llama", {"architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0}, {}, {}),
    "llama biased": (
        "llama", {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True}, {},
        {"blk.0.attn_q.bias": np.zeros(32, np.float32), "blk.0.ffn_down.bias": np.zeros(32, np.float32)},
    ),
    "llama untied, wide heads": (
        "llama", {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False, "head_dim": 16},
        {"attention.key_length": 16, "rope.dimension_count": 16}, {"output.weight": np.zeros((8, 32), np.float32)},
    ),
    "llama 3": (
        "llama",
        {"architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0, "head_dim": 64, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}},
        {"attention.key_length": 64, "rope.freq_base": 500000.0}, {"rope_freqs.weight": llama3_factors(500000.0, 64, 32.0)},
    ),
    "llama linear": (
        "llama", {"architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {},
    ),
    "qwen2 yarn": (
        "qwen2",
        {"architectures": ["Qwen2ForCausalLM"], "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}, {},
    ),
    "qwen3": ("qwen3", {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, {"attention.key_length": 16}, {}),
    "phi3": (
        "phi3",
        {"architectures": ["Phi3ForCausalLM"], "sliding_window": 16, "original_max_position_embeddings": 64,
         "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
        {"attention.sliding_window": 16, "rope.scaling.original_context_length": 64, "rope.dimension_count": 8},
        {"rope_factors_long.weight": np.array(LONG, np.float32), "rope_factors_short.weight": np.array(SHORT, np.float32)},
    ),
    "phi3 partial": (
        "phi3", {"architectures": ["Phi3ForCausalLM"], "sliding_window": None, "partial_rotary_factor": 0.5},
        {"attention.sliding_window": 0, "rope.dimension_count": 4, "rope.scaling.original_context_length": 128}, {},
    ),
    "gemma2": (
        "gemma2",
        {"architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 16, "attn_logit_softcapping": 25.0,
         "final_logit_softcapping": 15.0, "query_pre_attn_scalar": 16},
        {"attention.key_length": 16, "attention.sliding_window": 16, "attn_logit_softcapping": 25.0, "final_logit_softcapping": 15.0}, {},
    ),
    "gemma3": (
        "gemma3",
        {"architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "rope_theta": 1e6,
         "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"attention.key_length": 16, "attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
         "rope.scaling.factor": 8.0}, {},
    ),
    "smollm3": ("smollm3", {"architectures": ["SmolLM3ForCausalLM"], "rope_theta": 10000.0, "no_rope_layer_interval": 4}, {}, {}),
    "granite": (
        "granite",
        {"architectures": ["GraniteForCausalLM"], "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.125,
         "logits_scaling": 8.0},
        {"embedding_scale": 12.0, "residual_scale": 0.25, "attention.scale": 0.125, "logit_scale": 8.0}, {},
    ),
    "olmo2": ("olmo2", {"architectures": ["Olmo2ForCausalLM"]}, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_header_means_the_same_model_as_the_config_it_came_from(case, tmp_path):
    architecture, own, header, tensors = CONFIGS[case]
    path = write_gguf(tmp_path / "m.gguf", architecture, hyperparameters(architecture, **{**SIX, **header}), {**EMBEDDING, **tensors})
    found = Architecture.from_config(hugging_face_config(read_gguf(path)))
    expected = Architecture.from_config({**SHAPE, **own})
    close = {"norm_eps": pytest.approx(found.norm_eps), "dtype": found.dtype}
    assert replace(expected, **close) == found


def test_frequencies_of_no_known_rule_are_kept_as_they_are(tmp_path):
    factors = np.array([1.0, 1.25, 3.0, 7.0], np.float32)
    path = write_gguf(tmp_path / "m.gguf", "llama", hyperparameters("llama"), {**EMBEDDING, "rope_freqs.weight": factors})
    rope = Architecture.from_config(hugging_face_config(read_gguf(path))).layers[0].rope
    assert rope.short_factor == rope.long_factor == tuple(factors.tolist())
    assert rope.attention_factor == 1.0


@pytest.mark.parametrize(
    ("header", "said"),
    [({"attention.head_count_kv": [1, 2]}, "differs between layers"), ({"attention.head_count": 0}, "head_count: 0 is not a whole"),
     ({"block_count": 2**31}, "block_count: 2147483648 is not"), ({"rope.freq_base": "x"}, "freq_base: 'x' is not a number"),
     ({"embedding_length": 1.5}, "embedding_length: 1.5"), ({"rope.freq_base": float("nan")}, "nan is not a number"),
     ({"rope.scaling.type": "su", "rope.scaling.factor": 2.0}, "'su' is not supported")],
)  # fmt: skip
def test_headers_that_cannot_be_run_are_refused(header, said, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", "llama", hyperparameters("llama", **header), EMBEDDING)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(str(path))


def test_a_missing_hyperparameter_is_named(tmp_path):
    header = {key: value for key, value in hyperparameters("llama").items() if not key.endswith("block_count")}
    with pytest.raises(CheckpointError, match=r"llama\.block_count: it is missing"):
        open_checkpoint(str(write_gguf(tmp_path / "m.gguf", "llama", header, EMBEDDING)))
