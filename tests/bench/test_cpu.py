"""What issues ask of the bundled model on a CPU and no clock decides: memory, quality, and the same text whatever the number of threads."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cpu_quality import WAYS, score
from octavo import env
from octavo.ops.native.binding import Native
from octavo.ops.native.build import CompilerError

TEXT = Path("/usr/share/common-licenses/GPL-3")  # Debian ships it
MODEL = "smollm2-135m"
LIMIT_BYTES = 420_000_000

ANSWER = """
import sys
from octavo import LLM, SamplingParams
model, num_tokens = sys.argv[1], int(sys.argv[2])
llm = LLM(model, max_model_len=704, kv_cache_memory_bytes=32 << 20)
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
for _ in range(2):  # one after the other
    print(*llm.generate([{"prompt_token_ids": list(range(7, num_tokens - 17))}], params, use_tqdm=False)[0].outputs[0].token_ids)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def answered(num_threads: int, num_tokens: int) -> list[str]:
    """Lines of a process of its own with so many threads: what it makes of a prompt, twice, with it `num_tokens`, and its resident KiB."""
    settings = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    done = subprocess.run([sys.executable, "-c", ANSWER, MODEL, str(num_tokens)], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def answers() -> dict[int, list[str]]:
    """By number of threads."""
    try:
        Native(env.cache_root(), 1).close()
    except CompilerError as error:
        pytest.skip(str(error))
    return {num_threads: answered(num_threads, 512) for num_threads in (1, 2, 3)}


@pytest.mark.timeout(900)
def test_text_does_not_depend_on_the_number_of_threads(answers: dict[int, list[str]]) -> None:
    assert len({text for lines in answers.values() for text in lines[:2]}) == 1


def test_one_stream_of_512_tokens_fits_into_420_mb(answers: dict[int, list[str]]) -> None:
    assert int(answers[2][2]) << 10 <= LIMIT_BYTES


@pytest.mark.timeout(900)
@pytest.mark.skipif(not TEXT.exists(), reason=f"{TEXT} is a text of Debian")
def test_packed_weights_cost_less_than_half_a_percent_of_perplexity() -> None:
    """Over 2,000 tokens it was 0.04 % lower; over 400 it is lower by more than half a percent."""
    scored = {name: score(flags, MODEL, TEXT.read_text(encoding="utf-8"), 2000)["entries"] for name, flags in WAYS.items()}
    perplexity = {name: math.exp(-sum(logprob for logprob, _ in entries) / len(entries)) for name, entries in scored.items()}
    assert perplexity["packed"] / perplexity["float32"] == pytest.approx(1, abs=0.005)
