"""The first of several hosts as a command: an engine that says its texts, and after a line on its input what ended it.

    python -m tests.cluster.first_host MODEL FLAGS     flags as JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from octavo import AsyncLLM, SamplingParams
from octavo.engine.client import EngineDead

FLAGS = {
    "skip_tokenizer_init": True, "max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": "1M",
}  # fmt: skip
PROMPTS = [list(range(3, 3 + length)) for length in (5, 11, 2, 30)]
LENGTHS = (3, 12, 7, 20)


async def texts(llm: AsyncLLM, which=range(4)) -> list[list[int]]:
    async def one(i: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=LENGTHS[i], ignore_eos=True, detokenize=False)
        found: list[int] = []
        async for output in llm.generate(PROMPTS[i], params, request_id=f"{time.monotonic()}-{i}"):
            found = list(output.outputs[0].token_ids)
        return found

    return await asyncio.wait_for(asyncio.gather(*map(one, which)), 60)


async def main(model: str, flags: dict[str, Any]) -> None:
    llm = await asyncio.wait_for(AsyncLLM.start(model, **flags), 120)
    try:
        found = await texts(llm)
        print(json.dumps({"texts": found, "steps": [one.num_steps for one in await llm.engine.stats()]}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        begin_s = time.monotonic()
        try:
            await texts(llm)
            print(json.dumps({"error": ""}), flush=True)
        except EngineDead as error:
            print(json.dumps({"error": str(error), "seconds": time.monotonic() - begin_s}), flush=True)
    finally:
        await llm.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
