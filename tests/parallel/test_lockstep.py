"""Two replicas that share experts: the greedy text of one engine, an idle one in step, uneven ends, and no hang when one dies."""

from __future__ import annotations

import os
import signal

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.client import EngineDead
from tests.parity.conftest import make_pair  # noqa: F401  (a fixture)

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
PROMPTS = [list(range(3, 3 + length)) for length in (5, 11, 2, 30)]
LENGTHS = (3, 12, 7, 20)
FLAGS = {
    "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": "1M",
    "enable_prefix_caching": False,
}  # fmt: skip


def texts(llm: LLM, prompts, lengths) -> list[list[int]]:
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_replicas_that_share_experts_say_what_one_engine_says(make_pair, tmp_path):  # noqa: F811
    make_pair("qwen3_moe", **MOE)
    one = LLM(str(tmp_path), **FLAGS)
    expected = texts(one, PROMPTS, LENGTHS)
    one.close()
    two = LLM(str(tmp_path), **FLAGS, data_parallel_size=2, enable_expert_parallel=True)
    try:
        assert texts(two, PROMPTS, LENGTHS) == expected, "they end at different times"
        assert texts(two, PROMPTS[:1], LENGTHS[:1]) == expected[:1], "one is idle"
        children = two._engine._children
        os.kill(children[1].process.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="engine 1: its process ended with signal 9"):
            texts(two, PROMPTS, LENGTHS)
        assert all(child.process.poll() is not None for child in children)
    finally:
        two.close()
