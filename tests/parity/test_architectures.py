"""Every architecture against transformers: same logits for a whole prefill, in chunks and steps, and in mixed batches."""

import pytest
import torch

from tests.parity.memory import Memory, random_tokens

LATENT = {
    "q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 10, "v_head_dim": 14, "num_key_value_heads": 4,
    "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "routed_scaling_factor": 1.5,
}  # fmt: skip
V3 = {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.7, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 9}),
    "mistral with a long window": ("mistral", {"sliding_window": 200}),
    "qwen2": ("qwen2", {}),
    "qwen2 with late windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "mixtral": ("mixtral", {"num_local_experts": 5}),
    "mixtral with a window": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 9}),
    "qwen2 moe": (
        "qwen2_moe",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32},
    ),
    "qwen3 moe": ("qwen3_moe", {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}),
    "qwen3 moe with dense layers": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0], "head_dim": 16},
    ),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 5, "num_experts_per_tok": 3, "head_dim": 16, "sliding_window": 6}),
    "deepseek v2": ("deepseek_v2", {**LATENT, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
    "deepseek v2 lite": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1, "attention_bias": True}),
    "deepseek v3": ("deepseek_v3", {**LATENT, **V3}),
    "deepseek v3 stretched": ("deepseek_v3", {**LATENT, **V3, "rope_parameters": YARN}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "smollm3 with windows": ("smollm3", {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 5}),
    "phi3": ("phi3", {}),
    "phi3 partial": ("phi3", {"partial_rotary_factor": 0.5, "sliding_window": 11}),
    "granite": (
        "granite",
        {"attention_multiplier": 0.1, "logits_scaling": 3.0, "residual_multiplier": 0.3, "embedding_multiplier": 6.0},
    ),
    "olmo2": ("olmo2", {}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 20}),
    "gemma2 without caps": ("gemma2", {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}),
}


@pytest.fixture(params=MODELS)
def pair(request, make_pair):
    model_type, config = MODELS[request.param]
    return make_pair(model_type, **config)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("level", [0, 2])  # the references, and what replaces them on this machine
def test_logits_of_a_whole_prefill_and_of_chunks_and_steps(pair, level):
    tokens = random_tokens(40)
    theirs = pair.their_logits(tokens)
    assert theirs.abs().max() > 0.5  # logits of a model that is not degenerate
    model = pair.ours(optimization_level=level)
    close(Memory(model, 16).run(tokens, [40]), theirs)
    close(Memory(model, 5).run(tokens, [1, 13, 8, 11]), theirs)
    close(Memory(model, 3).run(tokens, [7, 19]), theirs)


@pytest.mark.parametrize("level", [0, 2])
def test_logits_of_a_mixed_batch(pair, level):
    """Sequences of different lengths begin, are chunked and step in the same batches; padding changes nothing."""
    texts = [random_tokens(n, seed=n) for n in (31, 18, 27)]
    theirs = [pair.their_logits(text) for text in texts]
    memory = Memory(pair.ours(optimization_level=level), 7)
    plan = [[(0, 10)], [(0, 1), (1, 12)], [(1, 1), (0, 12), (2, 20)], [(0, 1), (1, 1), (2, 1)], [(2, 6), (1, 4), (0, 7)]]
    for number, counts in enumerate(plan):
        starts = {row: memory.computed.get(row, 0) for row, _ in counts}
        got = memory.step([(row, texts[row][starts[row] : starts[row] + count]) for row, count in counts], padding=number)
        for (row, count), logits in zip(counts, got):
            close(logits, theirs[row][starts[row] : starts[row] + count])
    assert memory.computed == {0: 31, 1: 18, 2: 27}
