"""Names, row order and config of GGUF files. gguf-py's own name table and transformers' GGUF reader are the references."""

import gguf
import numpy as np
import pytest
import torch

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


def test_weights_of_the_bundled_model_equal_transformers_reading(bundled):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    fields = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    with torch.device("meta"):
        shell = LlamaForCausalLM(LlamaConfig(**{name: bundled.config[name] for name in fields}, tie_word_embeddings=True))
    expected = load_gguf_checkpoint(str(bundled.source), return_tensors=True, model_to_load=shell)["tensors"]
    tensors = bundled.tensors()
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.load(torch.float32), expected[name]), name
