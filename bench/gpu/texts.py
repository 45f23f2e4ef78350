"""Does a GPU say what the CPU's reference says? Greedy texts of the bundled model, token by token.

    python bench/gpu/texts.py --make [MODEL]       on a CPU: writes smollm2-texts.json beside this file, by -O0 in bfloat16
    python bench/gpu/texts.py [MODEL] [--level 2]  compares with it and writes texts.json to $OUT; exit code 1 where one differs

Where a token differs, the reference's own log-probabilities tell by how much it preferred its token to that one. Less than what bfloat16
can tell apart at the size of logits is a tie: it is shown, and the text goes on with the reference's token, until all are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

REFERENCE = Path(__file__).with_name("smollm2-texts.json")
NUM_TOKENS, NUM_SHOWN = 64, 5
TIE = 0.25  # two steps of bfloat16 between 16 and 32, where the best logits lie
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was a fox who",
    "Water boils at 100 degrees Celsius because",
    "Write a short letter to a friend about the sea.",
    "1, 1, 2, 3, 5, 8, 13,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam, I am writing to",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--level", type=int, default=2)
    asked = parser.parse_args()
    if asked.make:
        REFERENCE.write_text(a_text_a_line(make(asked.model)), encoding="utf-8")
        return
    result = compare(asked.model, asked.level, json.loads(REFERENCE.read_text(encoding="utf-8")))
    print(json.dumps(result, indent=1))
    (Path(os.environ.get("OUT", ".")) / "texts.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if result["differ"] else 0)


def a_text_a_line(reference: dict[str, Any]) -> str:
    texts = ",\n".join(json.dumps(text, separators=(",", ":")) for text in reference["texts"])
    head = json.dumps({**reference, "texts": []}).removesuffix("]}")
    return f"{head}\n{texts}\n]}}\n"


def start(model: str, level: int, **flags: Any) -> Any:
    from octavo import LLM

    return LLM(model, dtype="bfloat16", optimization_level=level, max_model_len=512, max_num_seqs=8, kv_cache_memory_bytes=1 << 28, **flags)


def make(model: str) -> dict[str, Any]:
    from octavo import SamplingParams
    from octavo.bench.report import circumstances

    llm = start(model, 0)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=NUM_SHOWN)
    texts = [
        {
            "prompt": prompt,
            "prompt_token_ids": list(output.prompt_token_ids),
            "text": output.outputs[0].text,
            "token_ids": list(output.outputs[0].token_ids),
            "best": [[[token, round(one.logprob, 4)] for token, one in step.items()] for step in output.outputs[0].logprobs],
        }
        for prompt, output in zip(PROMPTS, llm.generate(list(PROMPTS), params, use_tqdm=False))
    ]
    llm.close()
    return {**circumstances([]), "command": "python bench/gpu/texts.py --make", "texts": texts}


def compare(model: str, level: int, reference: dict[str, Any]) -> dict[str, Any]:
    """All texts at once, again from each tie on, until every token was compared."""
    from octavo import SamplingParams
    from octavo.bench.report import circumstances

    llm = start(model, level, skip_tokenizer_init=True)
    done = [0] * len(reference["texts"])  # tokens of each text that were compared
    ties: list[dict[str, Any]] = []
    differ: list[dict[str, Any]] = []
    while left := [number for number, count in enumerate(done) if count < NUM_TOKENS]:
        texts = [reference["texts"][number] for number in left]
        prompts = [{"prompt_token_ids": text["prompt_token_ids"] + text["token_ids"][: done[at]]} for at, text in zip(left, texts)]
        params = [SamplingParams(temperature=0, max_tokens=NUM_TOKENS - done[at], ignore_eos=True, detokenize=False) for at in left]
        for at, text, output in zip(left, texts, llm.generate(prompts, params, use_tqdm=False)):
            said, expected = output.outputs[0].token_ids, text["token_ids"][done[at] :]
            place = next((place for place, (one, other) in enumerate(zip(said, expected)) if one != other), None)
            if place is None:
                done[at] = NUM_TOKENS
                continue
            found = difference(text, done[at] + place, said[place])
            (ties if found["behind"] <= TIE else differ).append(found)
            done[at] += place + 1
    llm.close()
    counts = {"texts": len(done), "tokens": len(done) * NUM_TOKENS, "equal": len(done) * NUM_TOKENS - len(ties) - len(differ)}
    command = " ".join(["python bench/gpu/texts.py", *sys.argv[1:]])
    return {**circumstances([]), "command": command, "level": level, **counts, "ties": ties, "differ": differ}


def difference(text: dict[str, Any], place: int, token: int) -> dict[str, Any]:
    """By how much of log-probability the reference put this token behind its own."""
    best = dict(map(tuple, text["best"][place]))
    own = text["token_ids"][place]
    behind = best[own] - best.get(token, min(best.values()) - 1)
    return {"prompt": text["prompt"], "place": place, "reference": own, "here": token, "behind": round(behind, 4)}


if __name__ == "__main__":
    main()
