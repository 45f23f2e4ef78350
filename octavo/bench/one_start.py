"""One start of an engine, in a process that `octavo.bench.startup` begins.

    python -m octavo.bench.one_start '{"flags": {"model": ...}, "output_len": 64}'

The last line printed is JSON; its moments are of the clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def start(flags: dict[str, Any], output_len: int) -> dict[str, Any]:
    """Moments from here to the first token, in seconds; the start's timeline; then one stream's speed and its tokens."""
    begin_s = time.monotonic()
    from octavo.bench.offline import decode, warm_up
    from octavo.llm import LLM

    imported_s = time.monotonic()
    llm = LLM(**flags)
    ready_s = time.monotonic()
    vocab_size = llm.info["vocab_size"]
    decode(llm, vocab_size, input_len=16, output_len=1)
    first_token_s = time.monotonic()
    warm_up(llm, vocab_size)
    seconds, token_ids = decode(llm, vocab_size, input_len=32, output_len=output_len)
    llm.close()
    return {
        "moments": {"begin": begin_s, "imported": imported_s, "ready": ready_s, "first token": first_token_s},
        "timeline": llm.info["timeline"],
        "meanwhile": llm.info["meanwhile"],
        "ms_per_token": 1000 * seconds / len(token_ids),
        "token_ids": token_ids,
    }


if __name__ == "__main__":
    print(json.dumps(start(**json.loads(sys.argv[1]))))
