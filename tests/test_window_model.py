"""A Gemma-like model (five layers of a sliding window to one of full attention) through the whole engine.

The text does not depend on how the work is cut up, and a long context holds only the windows' blocks.
"""

from __future__ import annotations

import json

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.messages import Abort, Add
from octavo.types import Request

WINDOW = 16
CONFIG = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 300,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": WINDOW,
    "sliding_window_pattern": 6, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    "eos_token_id": 1, "torch_dtype": "float32",
}  # fmt: skip
PROMPTS = [[(7 * k + 3 * p) % 290 + 5 for k in range(length)] for p, length in enumerate((3, 40, 90, 17, 64))]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
TOKEN_BYTES = 2 * 2 * 16 * 4  # of one layer
SAME = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 512}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gemma")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def texts(folder, prompts=PROMPTS, **flags):
    llm = LLM(folder, **{**SAME, "kv_cache_memory_bytes": 4 << 20, **flags})
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False)
    metrics = llm.get_metrics()
    llm.close()
    return [output.outputs[0].token_ids for output in outputs], metrics


@pytest.fixture(scope="module")
def plain(folder):
    return texts(folder, optimization_level=0, async_scheduling=False, enable_prefix_caching=False)[0]


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_batched_tokens": 7, "block_size": 8},
        {"block_size": 32},
        {"max_num_seqs": 1},
        {"kv_cache_memory_bytes": 34 * 16 * TOKEN_BYTES, "max_model_len": 160, "max_num_batched_tokens": 32},
    ],
    ids=["chunks", "blocks", "alone", "small pool"],
)
def test_the_text_is_the_same(folder, plain, flags):
    found, metrics = texts(folder, **flags)
    assert found == plain
    assert metrics["kv_cache_usage"] == 0


def test_a_prefix_hit_keeps_the_text(folder, plain):
    llm = LLM(folder, **SAME, kv_cache_memory_bytes=4 << 20)
    for _ in range(2):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == plain
    assert outputs[2].num_cached_tokens > 0
    llm.close()


def test_a_long_context_holds_the_windows_blocks_only(folder):
    """After 400 tokens the full layer's group has 25 blocks of 16, each of the five window groups at most those that a window can touch."""
    llm = LLM(folder, **SAME, kv_cache_memory_bytes=4 << 20, enable_prefix_caching=False)
    loop = llm._engine
    loop.handle([Add(Request("long", tuple(k % 290 + 5 for k in range(400)), SamplingParams(max_tokens=50, ignore_eos=True)))])
    for _ in range(10):
        loop.step()
    held = [sum(1 for block in table if block >= 0) for table in next(iter(loop.scheduler.running)).blocks]
    used = round(loop.stats()["kv_cache_usage"] * loop.scheduler.cache.pool.num_blocks)
    assert max(held) >= 25
    assert used <= 26 + 5 * (WINDOW // 16 + 2)
    assert used < 6 * 25 / 2
    loop.handle([Abort("long")])
    llm.close()
