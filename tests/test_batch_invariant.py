"""With --batch-invariant a prompt's tokens and their log-probabilities are the same bits alone and in any company."""

import pytest

from octavo import LLM, SamplingParams
from octavo.config.fields import ConfigError

PROMPT = "The three most important things about the history of the sea are"
OTHERS = [f"{'Once upon a time, ' * (1 + number % 5)}there were {number}" for number in range(12)]
FLAGS = {"max_model_len": 128, "kv_cache_memory_bytes": 64 << 20, "max_num_seqs": 32, "batch_invariant": True}


def told(llm: LLM, prompts: list[str], at: int) -> tuple[list[int], list[float]]:
    """The tokens and log-probabilities of one of the prompts."""
    params = [SamplingParams(temperature=0, max_tokens=8 if one == PROMPT else 4, ignore_eos=True, logprobs=1) for one in prompts]
    output = llm.generate(prompts, params, use_tqdm=False)[at].outputs[0]
    assert output.logprobs is not None
    return output.token_ids, [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_alone_and_in_company(dtype):
    alone = LLM("smollm2-135m", **FLAGS, dtype=dtype)
    expected = told(alone, [PROMPT], 0)
    assert told(alone, [*OTHERS[:9], PROMPT, *OTHERS[9:]], 9) == expected  # and now the prompt is cached
    alone.close()
    cut = LLM("smollm2-135m", **FLAGS, dtype=dtype, max_num_batched_tokens=33, enable_prefix_caching=False)
    assert told(cut, [*OTHERS[:7], PROMPT], 7) == expected
    cut.close()


def test_what_it_cannot_hold_for_is_refused():
    with pytest.raises(ConfigError, match="--batch-invariant = True is not possible: products with packed weights"):
        LLM("smollm2-135m", **FLAGS, quantization="gguf")
    with pytest.raises(ConfigError, match="hangs on the batch"):
        LLM("smollm2-135m", **FLAGS, attention_backend="cpu")
