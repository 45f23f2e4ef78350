"""config.json contents of well-known models, as far as memory depends on them."""

LLAMA3_8B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "vocab_size": 128256, "dtype": "bfloat16",
}  # fmt: skip
QWEN25_32B = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 40,
    "num_hidden_layers": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "vocab_size": 152064, "dtype": "bfloat16",
}  # fmt: skip
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "max_position_embeddings": 40960, "tie_word_embeddings": True,
    "vocab_size": 151936, "dtype": "bfloat16",
}  # fmt: skip
GEMMA3_1B = {
    "architectures": ["Gemma3ForCausalLM"], "head_dim": 256, "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "max_position_embeddings": 32768, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144, "dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "max_position_embeddings": 40960, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "tie_word_embeddings": False, "vocab_size": 151936,
    "dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "tie_word_embeddings": False, "vocab_size": 129280, "dtype": "bfloat16",
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip
MIXTRAL_8X7B = {
    "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False, "vocab_size": 32000, "dtype": "bfloat16",
}  # fmt: skip
