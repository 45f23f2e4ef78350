"""`LLM.embed` against transformers: the last hidden state, through the whole engine, whatever chunks, cache and preemption do."""

import pytest
import torch

from octavo import LLM
from tests.parity.memory import random_tokens

SMALL = {"skip_tokenizer_init": True, "max_model_len": 64, "kv_cache_memory_bytes": 1 << 20, "block_size": 8, "dtype": "float32"}


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("model", ["llama", "gemma2"])
def test_vectors_are_those_of_transformers(model, pooling, make_pair, tmp_path):
    pair = make_pair(model, **({"head_dim": 16, "sliding_window": 6} if model == "gemma2" else {}))
    prompts = [random_tokens(n, seed) for seed, n in enumerate((5, 40, 17))]
    prompts.append(prompts[1][:30])
    llm = LLM(str(tmp_path), pooling_type=pooling, max_num_batched_tokens=16, max_num_seqs=3, **SMALL)
    for _ in range(2):  # the second time with what the cache holds
        outputs = llm.embed([{"prompt_token_ids": prompt} for prompt in prompts], use_tqdm=False)
        for prompt, output in zip(prompts, outputs):
            with torch.inference_mode():
                states = pair.theirs.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]  # [tokens, hidden]
            expected = torch.nn.functional.normalize(states[-1] if pooling == "last" else states.mean(0), dim=0)
            assert output.outputs.embedding == pytest.approx(expected.tolist(), abs=2e-4)
    assert (outputs[1].num_cached_tokens > 0) == (pooling == "last"), "a mean needs every state"
    raw = llm.embed([prompts[0]], use_tqdm=False, normalize=False)[0].outputs.embedding
    assert sum(value * value for value in raw) != pytest.approx(1)
    llm.close()
