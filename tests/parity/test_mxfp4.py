"""GPT-OSS as its files store it, experts in MXFP4, against transformers with the numbers that its own reader makes of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from octavo import LLM, SamplingParams
from octavo.config.architecture import Architecture
from octavo.models.load import load
from octavo.models.mxfp4_tensors import widened
from octavo.models.registry import build_model
from octavo.models.safetensors_reader import read_safetensors_folder
from octavo.models.tensors import CheckpointError
from octavo.quant.checkpoint import choose_scheme
from tests.parity.memory import Memory, random_tokens
from tests.parity.tiny import SETTINGS

NUM, HIDDEN, INNER = 4, 64, 96
CONFIG = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_local_experts": NUM, "num_experts_per_tok": 2, "head_dim": 16,
    "sliding_window": 6,
}  # fmt: skip


@pytest.fixture
def packed(make_pair, tmp_path):
    """The pair, its experts' weights replaced by what random bytes say; the folder has the bytes."""
    pair = make_pair("gpt_oss", **CONFIG)
    tensors = {name: tensor.load().clone() for name, tensor in pair.tensors.items()}
    for path in tmp_path.glob("model*.safetensors*"):
        path.unlink()
    for number, layer in enumerate(pair.theirs.model.layers):
        for name, (out, inside) in {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}.items():
            blocks = torch.randint(0, 256, (NUM, out, inside // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 126, (NUM, out, inside // 32), dtype=torch.uint8)
            getattr(layer.mlp.experts, name).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            path = f"model.layers.{number}.mlp.experts.{name}"
            del tensors[path]
            tensors |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    pair.config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(pair.config))
    return replace(pair, tensors=read_safetensors_folder(tmp_path))


@pytest.mark.parametrize("quantization", ["mxfp4", "none"])
def test_logits_in_chunks_are_those_of_transformers(packed, quantization):
    tokens = random_tokens(23)
    model = build_model(Architecture.from_config(packed.config), SETTINGS, scheme=choose_scheme(quantization, {}))
    load(model, packed.tensors if quantization == "mxfp4" else widened(packed.tensors))
    found = Memory(model, 4, max_length=32).run(tokens, [9, 5, 1, 8])
    torch.testing.assert_close(found, packed.their_logits(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("flags", "said"), [({}, "experts as in the file"), ({"quantization": "none"}, None)])
def test_an_engine_keeps_them_packed_unless_told_otherwise(packed, tmp_path, flags, said):
    prompt, tokens = random_tokens(13), torch.tensor([random_tokens(13)])
    with torch.inference_mode():
        for _ in range(8):
            tokens = torch.cat((tokens, packed.theirs(tokens, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
    common = dict(skip_tokenizer_init=True, dtype="float32", kv_cache_dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 20)
    llm = LLM(str(tmp_path), **common, **flags)
    assert llm.info["reasons"].get("quantization") == said
    (output,) = llm.generate(
        [{"prompt_token_ids": prompt}], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False), use_tqdm=False
    )
    llm.close()
    assert list(output.outputs[0].token_ids) == tokens[0, len(prompt) :].tolist()


def test_codes_without_scales_are_refused(packed):
    tensors = {name: tensor for name, tensor in packed.tensors.items() if not name.endswith("1.mlp.experts.down_proj_scales")}
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts\.down_proj_blocks .* is no weight of experts in MXFP4"):
        widened(tensors)
