"""Experts of a checkpoint find their places, whether each has tensors of its own or all are fused; text through the whole engine."""

from __future__ import annotations

import re

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.models.load import WeightsMismatch, load
from octavo.models.registry import build_model
from tests.models.test_load import lazy, refused, tensors_for
from tests.parity.memory import random_tokens
from tests.parity.tiny import SETTINGS, tiny

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
EXPERT = re.compile(r"(.*\.experts)\.\d+\.(.*)\.weight")


def fused(tensors):
    """The same checkpoint with one tensor for the experts of a layer: [experts, out, in], gates before ups."""
    parts, rest = {}, {}
    for name, tensor in tensors.items():
        if found := EXPERT.fullmatch(name):
            parts.setdefault(found.groups(), []).append(tensor.load())
        else:
            rest[name] = tensor
    for (stack, part), experts in parts.items():
        if part == "gate_proj":
            whole = [torch.cat(pair) for pair in zip(experts, parts[stack, "up_proj"])]
            rest[f"{stack}.gate_up_proj"] = lazy(torch.stack(whole))
        elif part == "down_proj":
            rest[f"{stack}.down_proj"] = lazy(torch.stack(experts))
    return rest


def test_fused_experts_load_as_single_ones_do():
    c = tiny("qwen3_moe", **MOE)
    single = tensors_for(c)
    one, other = build_model(c, SETTINGS), build_model(c, SETTINGS)
    load(one, single)
    load(other, fused(single))
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert torch.equal(a, b), name
    experts = one.model.layers["1"].mlp.experts
    assert torch.equal(experts.gate_up_proj.weight[2, :12], single["model.layers.1.mlp.experts.2.gate_proj.weight"].load())
    assert torch.equal(experts.down_proj.weight[3], single["model.layers.1.mlp.experts.3.down_proj.weight"].load())


def test_missing_and_unknown_experts_are_named():
    c = tiny("qwen3_moe", **MOE)
    text = refused(c, tensors_for(c, **{"model.layers.1.mlp.experts.3.up_proj.weight": None}))
    assert "1 missing: model.layers.1.mlp.experts.3.up_proj.weight" in text
    text = refused(c, tensors_for(c, **{"model.layers.1.mlp.experts.4.up_proj.weight": torch.ones(12, 32)}))
    assert "1 not known to the model: model.layers.1.mlp.experts.4.up_proj.weight" in text


def test_experts_that_are_there_twice_are_refused():
    c = tiny("qwen3_moe", **MOE)
    with pytest.raises(WeightsMismatch, match="twice, fused and in parts"):
        load(build_model(c, SETTINGS), {**tensors_for(c), **fused(tensors_for(c))})


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("qwen3_moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}),
        ("mixtral", {"num_local_experts": 4}),
        ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 6}),
        (
            "deepseek_v3",
            {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 14, "n_group": 3,
             "topk_group": 2, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 4,
             "first_k_dense_replace": 1},
        ),
    ],
)
def test_greedy_text_in_chunks_is_that_of_transformers(make_pair, tmp_path, model_type, config):
    pair = make_pair(model_type, **config)
    prompts = [random_tokens(length, seed=length) for length in (3, 21, 37)]
    wanted = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(12):
                tokens = torch.cat((tokens, pair.theirs(tokens, use_cache=False).logits[:, -1:].argmax(-1)), dim=1)
        wanted.append(tokens[0, len(prompt) :].tolist())
    llm = LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="float32", max_model_len=64, max_num_batched_tokens=8, block_size=8,
        kv_cache_memory_bytes=1 << 20,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False)
    llm.close()
    assert [list(output.outputs[0].token_ids) for output in outputs] == wanted
