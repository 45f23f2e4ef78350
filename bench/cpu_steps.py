"""What a decode step costs the host on a CPU beside its operations, which one native call replays from a tape.

    python bench/cpu_steps.py [--model smollm2-135m] [--sequences 1 8 32] [--steps 200]

Prints one JSON line for each number of sequences, in microseconds a step: `operations`, the native call; `replay`, what Python does
around it to repeat a recorded step; `engine`, that and all else: planning, rows, reading the tokens, commit. `alone` are the same two
where the native call is left out, so that no weights have passed through the caches since the step before. Medians of wall time, which
is the step's only on a machine that does nothing else, and the least of each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from octavo import LLM
from octavo.bench.offline import run_once
from octavo.bench.workloads import Workload, draw
from octavo.ops.native.binding import Native, shared_native

INPUT_LEN = 16


class Timed:
    """A call, and how long it took, each time that it was made."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.seconds = call, list[float]()

    def __call__(self, *args: object) -> Any:
        begin_s = time.perf_counter()
        made = self._call(*args)
        self.seconds.append(time.perf_counter() - begin_s)
        return made


def nothing(*_: object) -> None:
    """In place of a tape's operations."""


def steps(llm: LLM, native: Native, replay: Callable[..., None], sequences: int, count: int) -> dict[str, list[float]]:
    """Seconds of the steps that are one replay each: of the operations, of what is around them, and of all that is."""
    loop = llm._engine
    graphs = loop.executor.worker.graphs
    operations, seam, whole = Timed(replay), Timed(graphs.step), Timed(loop.step)
    with patch.object(native, "replay", operations), patch.object(graphs, "step", seam), patch.object(loop, "step", whole):
        run_once(llm, draw(Workload(sequences, INPUT_LEN, count), 32000, sequences))
    last = slice(-len(operations.seconds), None)  # the first steps read the prompts
    around = [seconds - inner for seconds, inner in zip(seam.seconds[last], operations.seconds)]
    engine = [seconds - inner for seconds, inner in zip(whole.seconds[last], operations.seconds)]
    return {"operations": operations.seconds, "replay": around, "engine": engine}


def us(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds) * 1e6, 1), "least": round(min(seconds) * 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    llm = LLM(asked.model, max_model_len=INPUT_LEN + asked.steps, kv_cache_memory_bytes=256 << 20)
    native = shared_native()
    if native is None:
        parser.error("there are no C kernels on this machine, and so no tapes")
    for sequences in asked.sequences:
        run_once(llm, draw(Workload(sequences, INPUT_LEN, 4), 32000, 0))  # records the tape
        found = {name: us(seconds) for name, seconds in steps(llm, native, native.replay, sequences, asked.steps).items()}
        alone = steps(llm, native, nothing, sequences, asked.steps)
        found |= {f"{name}_alone": us(alone[name]) for name in ("replay", "engine")}
        print(json.dumps({"sequences": sequences, "us": found}), flush=True)


if __name__ == "__main__":
    main()
