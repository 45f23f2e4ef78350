"""A whole file of each kind of blocks: what the model multiplies with is what gguf-py reads, at each level and in each type."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import open_checkpoint
from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.ops.expand_blocks import DEQUANTIZE
from tests.models.gguf_files import hyperparameters, write_gguf
from tests.ops.blocks import random_blocks

HIDDEN, HEADS = 256, 4  # a row is at least one block of 256 values
SIZES = {"embedding_length": HIDDEN, "feed_forward_length": HIDDEN, "block_count": 1, "attention.head_count_kv": HEADS}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def written(folder: Path, kind: str) -> tuple[Path, dict[str, np.ndarray]]:
    """A file whose matrices are all of one kind, and their numbers by name as gguf-py reads them."""
    names = ["token_embd.weight", *(f"blk.0.{name}.weight" for name in MATRICES)]
    blocks = {name: random_blocks(kind, HIDDEN * HIDDEN // 256 * (1 if kind.endswith("K") else 8), seed) for seed, name in enumerate(names)}
    tensors = {name: one.reshape(HIDDEN, -1) for name, one in blocks.items()}
    norms = {name: np.ones(HIDDEN, np.float32) for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")}
    path = write_gguf(folder / "model.gguf", "llama", hyperparameters("llama", **SIZES), tensors | norms, dict.fromkeys(tensors, kind))
    return path, {name: gguf.quants.dequantize(one, gguf.GGMLQuantizationType[kind]) for name, one in tensors.items()}


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", DEQUANTIZE)
def test_a_file_of_one_kind(kind: str, dtype: str, level: int, tmp_path: Path) -> None:
    path, numbers = written(tmp_path, kind)
    checkpoint = open_checkpoint(str(path))
    model = build_model(Architecture.from_config(checkpoint.config), Resolved(dtype=dtype, max_model_len=64, optimization_level=level))
    load(model, checkpoint.tensors())
    layer, one = model.model.layers["0"], torch.eye(HIDDEN, dtype=getattr(torch, dtype))

    def multiplied(linear: torch.nn.Module) -> torch.Tensor:  # with the unit matrix: the weight, turned
        return linear(one).T

    def read(*names: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([numbers[f"blk.0.{name}.weight"] for name in names])).to(one.dtype)

    q, k, v = multiplied(layer.self_attn.qkv_proj).split(HIDDEN)
    for turned, name in ((q, "attn_q"), (k, "attn_k")):  # rows of a head lie in pairs in the file
        assert torch.equal(turned, read(name).view(HEADS, -1, 2, HIDDEN).transpose(1, 2).reshape(HIDDEN, HIDDEN)), name
    assert torch.equal(v, read("attn_v"))
    assert torch.equal(multiplied(layer.self_attn.o_proj), read("attn_output"))
    assert torch.equal(multiplied(layer.mlp.gate_up_proj), read("ffn_gate", "ffn_up"))
    assert torch.equal(multiplied(layer.mlp.down_proj), read("ffn_down"))
    table = torch.from_numpy(numbers["token_embd.weight"]).to(one.dtype)
    assert torch.equal(model.model.embed_tokens(torch.arange(HIDDEN)), table)
    assert torch.equal(model.lm_head(one).T, table)
