"""A model that sleeps gives its memory on a GPU back, and says the same when it has woken."""

from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.worker.sleep import _used_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

MODEL = str(Path(__file__).parents[2] / "bench" / "models" / "qwen3-0.6b")
KV_BYTES = 1 << 30
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
PROMPTS = [{"prompt_token_ids": [7 * row + at for at in range(20)]} for row in range(3)]


def tokens(llm: LLM) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def test_a_gpu_gets_its_memory_back():
    flags = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 256, "max_num_seqs": 16}
    llm = LLM(MODEL, kv_cache_memory_bytes=KV_BYTES, enable_sleep_mode=True, **flags)
    expected = tokens(llm)
    awake = _used_bytes(torch.device("cuda"))
    weights_bytes = sum(weight.nbytes for weight in llm._engine.executor.worker.model.parameters())
    for level in (1, 2):
        llm.sleep(level)
        assert awake - _used_bytes(torch.device("cuda")) >= 0.95 * (KV_BYTES + weights_bytes)
        llm.wake_up()
        assert tokens(llm) == expected
    llm.close()
