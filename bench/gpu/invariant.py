"""Is a text the same alone and among 255 others with --batch-invariant, and what does that cost?

Log-probabilities keep a step out of graphs, so tokens are compared once more as they come from graphs.

    python bench/gpu/invariant.py [MODEL] [--layers N]     writes invariant.json to $OUT
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

NUM_OTHERS, NUM_TOKENS = 255, 64


def main() -> None:
    model = next((word for word in sys.argv[1:] if not word.startswith("--")), "bench/models/qwen3-0.6b")
    results = {}
    for invariant in (True, False):
        try:
            results["invariant" if invariant else "usual"] = measure(model, invariant)
        except Exception as error:
            results["invariant" if invariant else "usual"] = {"error": repr(error)}
    for name, found in results.items():
        print(name, found)
    from octavo.bench.report import circumstances

    found = {**circumstances([]), "command": " ".join(["python bench/gpu/invariant.py", *sys.argv[1:]]), **results}
    (Path(os.environ.get("OUT", ".")) / "invariant.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(model: str, invariant: bool) -> dict[str, object]:
    """Texts alone and in company, with log-probabilities bit by bit; seconds of both."""
    from octavo import LLM, SamplingParams

    random.seed(1)
    flags = {"load_format": "dummy", "skip_tokenizer_init": True, "batch_invariant": invariant, "enable_prefix_caching": False}
    if os.environ.get("SMALL"):  # a dry run on a CPU
        flags |= {"max_model_len": 256, "max_num_seqs": 32, "kv_cache_memory_bytes": 64 << 20, "hf_overrides": {"num_hidden_layers": 2}}
    llm = LLM(model, **flags, **({"gpu_memory_utilization": 0.4} if not os.environ.get("SMALL") else {}))
    vocab, others = llm.info["vocab_size"], NUM_OTHERS if not os.environ.get("SMALL") else 20

    def drawn(length: int) -> dict[str, list[int]]:
        return {"prompt_token_ids": [random.randrange(vocab) for _ in range(length)]}

    def run(prompts: list[dict[str, list[int]]], logprobs: int | None = None) -> tuple[list, float]:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, logprobs=logprobs)
        begin_s = time.perf_counter()
        return llm.generate(prompts, params, use_tqdm=False), time.perf_counter() - begin_s

    asked = [drawn(length) for length in (17, 40, 100)]
    company = [drawn(random.randint(10, 120)) for _ in range(others)]
    run([drawn(16)])
    unlike, unlike_scores, unlike_captured, steps = 0, 0, 0, 0
    for number, one in enumerate(asked):
        place = number * 7
        alone = run([one], 1)[0][0].outputs[0]
        among = run([*company[:place], one, *company[place:]], 1)[0][place].outputs[0]
        pairs = list(zip(scored(alone), scored(among), strict=True))
        unlike += sum(left[0] != right[0] for left, right in pairs)
        unlike_scores += sum(left[1] != right[1] for left, right in pairs)
        steps += NUM_TOKENS
    alone = [run([one]) for one in asked]
    among, among_s = run([*company, *asked][-NUM_OTHERS - 1 :])
    for (one,), other in zip((outputs for outputs, _ in alone), among[-len(asked) :]):
        unlike_captured += sum(left != right for left, right in zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True))
    alone_s = alone[0][1]
    llm.close()
    return {
        "tokens unlike": f"{unlike} of {steps}",
        "log-probabilities unlike": f"{unlike_scores} of {steps}",
        "tokens of captured steps unlike": f"{unlike_captured} of {steps}",
        "alone, ms a token": round(1000 * alone_s / NUM_TOKENS, 3),
        f"{len(among)} at once, tokens/s": round(len(among) * NUM_TOKENS / among_s),
    }


def scored(output) -> list[tuple[int, float]]:
    return [(token, entry[token].logprob) for token, entry in zip(output.token_ids, output.logprobs)]


if __name__ == "__main__":
    main()
