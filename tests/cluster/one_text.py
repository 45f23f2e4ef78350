"""What several hosts must say as one process says it."""

from __future__ import annotations

import socket

from octavo import LLM, SamplingParams

FLAGS = {"skip_tokenizer_init": True, "max_model_len": 64, "kv_cache_memory_bytes": "1M"}
LIMIT_S = 10.0  # within which an end must have reached everybody
PROMPTS = [{"prompt_token_ids": list(range(3, 3 + length))} for length in (5, 11, 2)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)


def texts(llm: LLM) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def of_one_process(model: str) -> list[tuple[int, ...]]:
    llm = LLM(model, **FLAGS)
    found = texts(llm)
    llm.close()
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
