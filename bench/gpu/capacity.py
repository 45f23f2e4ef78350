"""How many tokens of KV does a started engine hold, by KV format: as many as `octavo plan` says for such a card, and as many as vLLM found?

    python bench/gpu/capacity.py [MODEL ...] [--kv-cache-dtype auto int8 fp8] [--device h200]      writes capacity.json to $OUT

Each engine starts in a process of its own, at a share of 0.92. Its arena is allocated whole, so its bytes are compared too, and what
torch has at most taken after a step of the whole budget is compared with the plan. The exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

MODELS = ("bench/models/llama3-8b", "bench/models/qwen3-0.6b")
VLLM_TOKENS = {"llama3-8b": 914_672, "qwen3-0.6b": 1_182_768}  # vLLM 0.23.0 at its defaults on the same card
MOST_OFF, LEAST_RATIO, SHARE = 0.01, 1.93, 0.92


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto", "int8", "fp8"])
    parser.add_argument("--device", default="h200", help="what the plan is made for, or here")
    parser.add_argument("--flag", action="append", default=[], help="a flag of LLM, name=value in JSON")
    parser.add_argument("--one", action="store_true")
    asked = parser.parse_args()
    flags = {name: json.loads(value) for name, _, value in (flag.partition("=") for flag in asked.flag)}
    if asked.one:
        print(json.dumps(started(asked.models[0], asked.kv_cache_dtype[0], flags)))
        return
    rows = []
    for model in asked.models:
        of_model = [one(asked, model, kv_dtype) for kv_dtype in asked.kv_cache_dtype]
        for row in of_model:
            row["ratio"] = round(row["kv_tokens"] / of_model[0]["kv_tokens"], 4)
            row["wrong"] = wrong(row)
            print(json.dumps(row), flush=True)
        rows += of_model
    from octavo.bench.report import circumstances

    result = {**circumstances([]), "command": " ".join(["python bench/gpu/capacity.py", *sys.argv[1:]]), "rows": rows}
    (Path(os.environ.get("OUT", ".")) / "capacity.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(row["wrong"] for row in rows) else 0)


def one(asked: argparse.Namespace, model: str, kv_dtype: str) -> dict[str, Any]:
    words = [model, "--kv-cache-dtype", kv_dtype, "--one", *(word for flag in asked.flag for word in ("--flag", flag))]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    share, step = ["--gpu-memory-utilization", str(SHARE)], ["--max-num-batched-tokens", str(row["max_num_batched_tokens"])]
    plan_words = ["plan", model, "--device", asked.device, "--kv-cache-dtype", kv_dtype, *share, *step, "--json"]
    told = subprocess.run([sys.executable, "-m", "octavo", *plan_words], stdout=subprocess.PIPE, text=True, check=True)
    planned = json.loads(told.stdout)["kv_tokens"]
    return {"model": model, "kv_cache_dtype": kv_dtype, "planned_tokens": planned, **row}


def wrong(row: dict[str, Any]) -> list[str]:
    """What does not hold."""
    said = []
    least = {"auto": 1.0}.get(row["kv_cache_dtype"], LEAST_RATIO)
    if row["ratio"] < least:
        said.append(f"{row['ratio']} times the tokens, {least} wanted")
    if abs(row["kv_tokens"] - row["planned_tokens"]) > MOST_OFF * row["planned_tokens"]:
        said.append(f"octavo plan says {row['planned_tokens']:,}")
    if abs(row["arena_bytes"] - row["kv_bytes"]) > MOST_OFF * row["kv_bytes"]:
        said.append(f"the arena has {row['arena_bytes']:,} bytes of {row['kv_bytes']:,} planned")
    vllm = VLLM_TOKENS.get(Path(row["model"]).name)
    if row["kv_cache_dtype"] == "auto" and vllm and row["kv_tokens"] < (1 - MOST_OFF) * vllm:
        said.append(f"vLLM found {vllm:,}")
    if row.get("peak_bytes", 0) > row["budget_bytes"]:
        said.append(f"at most {row['peak_bytes']:,} bytes of {row['budget_bytes']:,} planned")
    return said


def started(model: str, kv_dtype: str, flags: dict[str, Any]) -> dict[str, Any]:
    """An engine's capacity, and the memory that it has taken after its largest steps."""
    import torch

    from octavo import LLM, SamplingParams
    from octavo.config.architecture import Architecture
    from octavo.engine.build import open_model
    from octavo.plan.memory import plan_memory

    common: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "gpu_memory_utilization": SHARE}
    llm = LLM(model, kv_cache_dtype=kv_dtype, **common | flags)
    loop = llm.inside[0]
    settings = loop.scheduler.settings
    plan = plan_memory(Architecture.from_config(open_model(llm.config).config), settings)
    params = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=2, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [(7 * row + at) % 1000 for at in range(32)]} for row in range(settings.max_num_seqs)]
    llm.generate(prompts, params, use_tqdm=False)
    arena = llm.inside[0].executor.worker.model.attention_layers[0].kv.untyped_storage().nbytes()
    found = {
        "kv_tokens": llm.info["kv_tokens"], "max_num_batched_tokens": settings.max_num_batched_tokens, "kv_bytes": plan.kv_bytes,
        "arena_bytes": arena, "budget_bytes": plan.budget_bytes,
        "costs": {name: getattr(plan.costs, name) for name in plan.costs.__dataclass_fields__},
    }  # fmt: skip
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        found |= {
            "total_bytes": total, "used_bytes": total - free, "reserved_bytes": torch.cuda.memory_reserved(),
            "allocated_bytes": torch.cuda.memory_allocated(), "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        }  # fmt: skip
        found["peak_bytes"] = found["used_bytes"]
    llm.close()
    return found


if __name__ == "__main__":
    main()
