"""What products with packed weights cost in quality and save in memory and time: a .gguf file kept packed against the same file in float32.

    python bench/cpu_quality.py [--model smollm2-135m] [--text /usr/share/common-licenses/GPL-3] [--tokens 2000]

Prints one JSON object. Each way runs in a process of its own, whose resident memory is read after the text was scored.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

WAYS = {"float32": {"dtype": "float32"}, "packed": {"quantization": "gguf"}}
QUESTION = "What is the capital of France?"


def score(flags: dict[str, Any], model: str, text: str, num_tokens: int) -> dict[str, Any]:
    """Log-probability and rank of every token of the text, an answer, and what the process took."""
    from octavo import LLM, SamplingParams

    begin_s = time.perf_counter()
    llm = LLM(model, max_model_len=num_tokens + 8, kv_cache_memory_bytes=256 << 20, **flags)
    start_s = time.perf_counter() - begin_s
    tokens = llm.get_tokenizer().encode(text)[:num_tokens]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    scored = llm.generate([tokens], params, use_tqdm=False)[0].prompt_logprobs
    assert scored is not None
    entries = [(entry[token].logprob, entry[token].rank) for token, entry in zip(tokens[1:], scored[1:]) if entry is not None]
    chat = llm.chat([{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    llm.close()
    status = Path("/proc/self/status").read_text()
    resident_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return {"entries": entries, "answer": chat[0].outputs[0].text, "start_s": round(start_s, 2), "resident_mib": resident_kb >> 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--tokens", type=int, default=2000)
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = {}
    for name, flags in WAYS.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(score, (flags, options.model, text, options.tokens))
    entries = {name: one.pop("entries") for name, one in found.items()}
    for name, one in found.items():
        one["perplexity"] = round(math.exp(-sum(logprob for logprob, _ in entries[name]) / len(entries[name])), 4)
    pairs = list(zip(entries["float32"], entries["packed"]))
    errors = sorted(abs(exact - packed) for (exact, _), (packed, _) in pairs)
    report = {
        **found,
        "perplexity_ratio": round(found["packed"]["perplexity"] / found["float32"]["perplexity"], 5),
        "logprob_error": {"mean": round(sum(errors) / len(errors), 4), "p99": round(errors[len(errors) * 99 // 100], 4)},
        "first_in_both_or_neither": round(sum((a == 1) == (b == 1) for (_, a), (_, b) in pairs) / len(pairs), 4),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
