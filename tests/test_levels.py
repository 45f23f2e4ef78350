"""Greedy text is the same at every level, and whatever is recorded as graphs."""

from functools import cache
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

MODEL = str(Path(__file__).parents[1] / "bench" / "models" / "qwen3-0.6b")
SMALL = {
    "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 8 << 20,
    "max_num_batched_tokens": 48, "hf_overrides": {"num_hidden_layers": 2, "vocab_size": 400, "intermediate_size": 256},
}  # fmt: skip
PROMPTS = [{"prompt_token_ids": [(31 * row + 7 * at) % 400 for at in range(length)]} for row, length in enumerate((3, 40, 70, 9, 21))]
PARAMS = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False) for length in (12, 5, 9, 12, 7)]
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def texts(**flags):
    llm = LLM(MODEL, **SMALL, **flags)
    found = [tuple(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    llm.close()
    return found


@cache
def expected():
    return texts(optimization_level=0)


@pytest.mark.parametrize(
    "flags",
    [*({"optimization_level": level} for level in (1, 2, 3)), {"enforce_eager": True}, *({"cudagraph_mode": mode} for mode in MODES)],
    ids=str,
)
def test_the_text_is_that_of_the_reference(flags):
    assert len({token for text in expected() for token in text}) > 20, "a text that says one thing again and again would show nothing"
    assert texts(**flags) == expected()
