"""Is the memory on the device what was planned, and does it stay so over many mixed requests?

    python bench/gpu/soundness.py [MODEL] [--requests 10000] [--flag max_model_len=4096] ...     writes soundness.json to $OUT

One process starts an engine and compares the plan with what torch has allocated; serves requests of every kind (short, long, aborted,
several continuations, by a regular expression where there is a tokeniser) and compares again. A second process starts with the printed
--kv-cache-memory-bytes, which must give the same number of blocks. Without a GPU it is the process's resident memory that must not grow.
The exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

WARMING = 0.2  # share of the requests after which memory counts
MOST_OFF, MOST_GROWTH, MOST_GROWTH_CPU = 0.01, 0.001, 0.02
KINDS = ("short", "long", "aborted", "several", "structured")
AT_ONCE = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--flag", action="append", default=[], help="a flag of LLM, name=value in JSON")
    parser.add_argument("--part", choices=("serve", "blocks"))
    asked = parser.parse_args()
    flags = {name: json.loads(value) for name, _, value in (flag.partition("=") for flag in asked.flag)}
    if asked.part:
        print(json.dumps(serve(asked.model, flags, asked.requests) if asked.part == "serve" else blocks(asked.model, flags)))
        return
    served = part("serve", [])
    again = part("blocks", ["--flag", f"kv_cache_memory_bytes={served['plan']['kv_bytes']}"])
    command = " ".join(["python bench/gpu/soundness.py", *sys.argv[1:]])
    result = {**served, "command": command, "blocks_again": again["num_blocks"]}
    result["wrong"] = wrong(result)
    print(json.dumps(result, indent=1))
    (Path(os.environ.get("OUT", ".")) / "soundness.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if result["wrong"] else 0)


def part(name: str, words: list[str]) -> dict[str, Any]:
    """One of the two processes: its last line."""
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], *words, "--part", name], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def wrong(result: dict[str, Any]) -> list[str]:
    """What does not hold."""
    said = []
    after_load, warm, end = result["after_load"], result["warm"], result["end"]
    if "allocated" in after_load:
        held = result["plan"]["held_bytes"]
        if abs(after_load["allocated"] - held) > MOST_OFF * held:
            said.append(f"after load {after_load['allocated']:,} bytes are allocated and {held:,} were planned")
        most = result["plan"]["budget_bytes"]
        said += [f"{name}: {end[name]:,} bytes of {most:,} planned" for name in ("peak_allocated", "reserved") if end[name] > most]
    for name in ("allocated", "reserved", "resident"):
        growth = MOST_GROWTH_CPU if name == "resident" else MOST_GROWTH
        if name in end and end[name] > warm[name] * (1 + growth):
            said.append(f"{name} grew from {warm[name]:,} to {end[name]:,} bytes")
    if result["free_blocks"][0] != result["free_blocks"][1]:
        said.append(f"of {result['free_blocks'][0]} free blocks {result['free_blocks'][1]} came back")
    if result["plan"]["num_blocks"] != result["blocks_again"]:
        said.append(f"{result['plan']['num_blocks']} blocks, and {result['blocks_again']} with the printed size")
    if result["ends"].get("error"):
        said.append(f"{result['ends']['error']} requests failed")
    return said


def memory() -> dict[str, int]:
    """Bytes that torch holds on the GPU; without one, those of this process."""
    import torch

    if not torch.cuda.is_available():
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        return {"resident": 1024 * int(found[1]) if found else 0}
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    allocated, reserved, peak = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
    return {"allocated": allocated, "reserved": reserved, "peak_allocated": peak, "device_used": total - free}


def blocks(model: str, flags: dict[str, Any]) -> dict[str, int]:
    from octavo import LLM

    llm = LLM(model, **flags)
    num_blocks = llm.info["kv_tokens"] // llm.info["block_size"]
    llm.close()
    return {"num_blocks": num_blocks}


def plan_of(llm: Any) -> dict[str, int]:
    """What was planned, and of it what is held as soon as the engine is ready: weights, KV cache and rows."""
    from octavo.config.architecture import Architecture
    from octavo.engine.build import open_model
    from octavo.plan.memory import plan_memory

    plan = plan_memory(Architecture.from_config(open_model(llm.config).config), llm.inside[0].scheduler.settings)
    costs = {name: getattr(plan.costs, name) for name in plan.costs.__dataclass_fields__}
    held = costs["weight_bytes"] + costs["row_bytes"] + plan.kv_bytes
    return {**costs, "kv_bytes": plan.kv_bytes, "num_blocks": plan.num_blocks, "budget_bytes": plan.budget_bytes, "held_bytes": held}


def serve(model: str, flags: dict[str, Any], num_requests: int) -> dict[str, Any]:
    """Some requests are always under way; each that ends lets the next in."""
    from octavo import LLM
    from octavo.engine.messages import Abort, Add

    llm = LLM(model, **flags)
    loop, inbox = llm.inside
    result: dict[str, Any] = {"plan": plan_of(llm), "after_load": memory()}
    result["plan"]["num_blocks"] = llm.info["kv_tokens"] // llm.info["block_size"]
    draw, ends, kinds = random.Random(1), Counter[str](), Counter[str]()
    leaves: dict[str, int] = {}  # steps that requests whose client leaves still have
    open_: dict[str, int] = {}  # continuations that have not ended
    free = [loop.scheduler.cache.pool.num_free]
    begun = 0
    while begun < num_requests or open_:
        while begun < num_requests and len(open_) < AT_ONCE:
            kind = KINDS[begun % len(KINDS)]
            request = made(llm, kind, str(begun), draw)
            begun, kinds[kind] = begun + 1, kinds[kind] + 1
            open_[request.id] = request.params.n
            if kind == "aborted":
                leaves[request.id] = draw.randrange(6)
            loop.handle([Add(request)])
        loop.step()
        for news in inbox.take():
            if news.finish_reason is not None and news.request_id in open_:
                ends[news.finish_reason.value] += 1
                open_[news.request_id] -= 1
                if not open_[news.request_id]:
                    del open_[news.request_id]
        for name in [name for name, steps in leaves.items() if steps == 0 or name not in open_]:
            del leaves[name]
            if open_.pop(name, None) is not None:
                loop.handle([Abort(name)])
                ends["left"] += 1
        leaves = {name: steps - 1 for name, steps in leaves.items()}
        if "warm" not in result and begun >= WARMING * num_requests:
            result["warm"] = memory()
    while loop.busy:
        loop.step()
    loop.scheduler.reset_prefix_cache()
    free.append(loop.scheduler.cache.pool.num_free)
    result |= {"end": memory(), "kinds": dict(kinds), "ends": dict(ends), "free_blocks": free, "model": model, "flags": flags}
    llm.close()
    from octavo.bench.report import circumstances

    return {**circumstances([]), **result}


def made(llm: Any, kind: str, name: str, draw: random.Random) -> Any:
    from octavo import SamplingParams
    from octavo.types import Request, StructuredOutputs

    longest = llm.info["max_model_len"]
    most = max(17, longest // 2) if kind == "long" else min(48, longest // 4)
    prompt = tuple(draw.randrange(10, llm.info["vocab_size"]) for _ in range(draw.randint(max(1, most // 4), most)))
    common: dict[str, Any] = {"max_tokens": draw.randint(1, min(24, longest // 4)), "detokenize": False}
    if kind == "several":
        params = SamplingParams(n=3, temperature=1.0, seed=draw.randrange(1 << 30), **common)
    elif kind == "structured" and not llm.config.model.skip_tokenizer_init:
        params = SamplingParams(structured_outputs=StructuredOutputs(regex=f"[a-z]{{1,{draw.randint(2, 9)}}}"), **common)
    else:
        params = SamplingParams(temperature=draw.choice((0.0, 0.8)), top_p=draw.choice((1.0, 0.9)), ignore_eos=kind == "aborted", **common)
    return Request(name, prompt, params, llm.inside[0].clock())


if __name__ == "__main__":
    main()
