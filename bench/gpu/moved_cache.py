"""A cache folder that was filled here, moved: does the same start find all it needs there, and does another say what it lacks?

    python bench/gpu/moved_cache.py [MODEL] [--flag max_model_len=4096] ...     writes moved_cache.json to $OUT

Each start is a process of its own, with Triton's and CUDA's own folders empty. The exit code is 1 if anything does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

OTHER = {"block_size": 32}  # the one flag that is changed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="bench/models/qwen3-0.6b")
    parser.add_argument("--flag", action="append", default=[], help="a flag of LLM, name=value in JSON")
    parser.add_argument("--one", help="the flags of one start, in JSON")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(started(asked.model, json.loads(asked.one))))
        return
    flags = {name: json.loads(value) for name, _, value in (flag.partition("=") for flag in asked.flag)}
    with TemporaryDirectory(prefix="octavo-moved-") as name:
        result = moved(asked.model, flags, Path(name))
    from octavo.bench.report import circumstances

    result = {**circumstances([]), "command": " ".join(["python bench/gpu/moved_cache.py", *sys.argv[1:]]), **result}
    print(json.dumps(result, indent=1))
    (Path(os.environ.get("OUT", ".")) / "moved_cache.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if result["wrong"] else 0)


def moved(model: str, flags: dict[str, Any], folder: Path) -> dict[str, Any]:
    first, second = folder / "made", folder / "moved" / "deeper"
    filled = start(model, flags, folder / "a", first)
    second.parent.mkdir()
    if first.exists():
        first.rename(second)
    found = {
        "filled": filled,
        "moved": start(model, flags, folder / "b", second, forced=True),
        "one flag changed": start(model, flags | OTHER, folder / "c", second, forced=True),
        "an empty folder": start(model, flags, folder / "d", folder / "nothing", forced=True),
    }
    return {**found, "wrong": wrong(found)}


def wrong(found: dict[str, dict[str, Any]]) -> list[str]:
    """What does not hold."""
    said = [f"{name}: {found[name]['failed']}" for name in ("filled", "moved") if "failed" in found[name]]
    if not said and found["filled"]["token_ids"] != found["moved"]["token_ids"]:
        said.append("the moved folder gave other tokens")
    for name, words in (("one flag changed", "--block-size (32 here, 16 there)"), ("an empty folder", "forbids compiling")):
        if words not in found[name].get("failed", ""):
            said.append(f"{name}: it was not refused in words such as {words!r}")
    return said


def start(model: str, flags: dict[str, Any], home: Path, cache: Path, forced: bool = False) -> dict[str, Any]:
    """Its last line, or the line that it failed with."""
    variables = {"HOME": str(home), "CUDA_CACHE_PATH": str(home / "cuda"), "OCTAVO_CACHE_ROOT": str(cache)}
    home.mkdir()
    words = [sys.executable, __file__, model, "--one", json.dumps(flags)]
    given = os.environ | variables | ({"OCTAVO_FORCE_AOT_LOAD": "1"} if forced else {})
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": next((line for line in reversed(done.stderr.splitlines()) if line.strip()), str(done.returncode))}
    return json.loads(done.stdout.splitlines()[-1])


def started(model: str, flags: dict[str, Any]) -> dict[str, Any]:
    """A start, and tokens of greedy and of drawn requests."""
    import time

    begin_s = time.perf_counter()
    from octavo import LLM, SamplingParams

    llm = LLM(model, load_format="dummy", skip_tokenizer_init=True, **flags)
    ready_s = time.perf_counter() - begin_s
    prompts = [{"prompt_token_ids": [(3 * row + at) % 500 for at in range(8 + row)]} for row in range(4)]
    params = [SamplingParams(temperature=0.8 * (row > 1), seed=row, max_tokens=8, ignore_eos=True, detokenize=False) for row in range(4)]
    tokens = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
    llm.close()
    return {"ready_s": round(ready_s, 2), "token_ids": tokens}


if __name__ == "__main__":
    main()
