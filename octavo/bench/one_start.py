"""One start of an engine, in a process that `octavo.bench.startup` begins.

    python -m octavo.bench.one_start '{"flags": {"model": ...}, "output_len": 64}'

The last line printed is JSON; its moments are of the clock that all processes of a machine share. Without "told" the text is told in full,
for later starts to be compared with.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any


def start(flags: dict[str, Any], output_len: int, told: dict[str, Any] | None = None) -> dict[str, Any]:
    """Moments from here to the first token, in seconds; the start's timeline; then one stream's speed, and where its tokens are not those
    that were told."""
    begin_s = time.monotonic()
    from octavo import LLM
    from octavo.bench.offline import decode, warm_up
    from octavo.bench.ties import Told, differences, tell

    imported_s = time.monotonic()
    llm = LLM(**flags)
    ready_s = time.monotonic()
    vocab_size = llm.info["vocab_size"]
    decode(llm, vocab_size, input_len=16, output_len=1)
    first_token_s = time.monotonic()
    warm_up(llm, vocab_size)
    seconds, prompt, token_ids = decode(llm, vocab_size, input_len=32, output_len=output_len)
    text = tell(llm, prompt, output_len) if told is None else Told(**told)
    differing = differences(llm, text)
    llm.close()
    return {
        "moments": {"begin": begin_s, "imported": imported_s, "ready": ready_s, "first token": first_token_s},
        "timeline": llm.info["timeline"],
        "meanwhile": llm.info["meanwhile"],
        "ms_per_token": 1000 * seconds / len(token_ids),
        "differing": [asdict(one) for one in differing],
        "told": asdict(text),
    }


if __name__ == "__main__":
    print(json.dumps(start(**json.loads(sys.argv[1]))))
