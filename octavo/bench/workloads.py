"""What is measured: how many requests, how long their prompts and outputs are. Drawn from a seed, so that every engine gets the same."""

from __future__ import annotations

import random
from dataclasses import dataclass

Length = int | tuple[int, int]  # a number of tokens, or the ends of a uniform range
LOWEST_ID, HIGHEST_ID = 10, 100_000


@dataclass(frozen=True)
class Workload:
    num_prompts: int
    input_len: Length
    output_len: Length


CASES: dict[str, Workload] = {
    "lat1": Workload(1, 32, 256),
    "lat8": Workload(8, 128, 256),
    "dec64": Workload(64, 128, 256),
    "dec256": Workload(256, 128, 256),
    "w2": Workload(1000, 512, 128),
    "nano": Workload(256, (100, 1024), (100, 1024)),
    "pre": Workload(64, 4096, 1),
}


@dataclass(frozen=True)
class Drawn:
    """A workload's prompts as token ids, and how many tokens to make for each."""

    prompts: tuple[tuple[int, ...], ...]
    output_lens: tuple[int, ...]

    @property
    def num_input_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return max(len(prompt) + output for prompt, output in zip(self.prompts, self.output_lens))


def draw(workload: Workload, vocab_size: int, seed: int = 1) -> Drawn:
    """First all prompts (each its length, then its ids), then all output lengths. Ids stay below the vocabulary where it is smaller."""
    source = random.Random(seed)
    highest = min(HIGHEST_ID, vocab_size - 1)
    lowest = min(LOWEST_ID, highest)
    prompts = tuple(
        tuple(source.randint(lowest, highest) for _ in range(_pick(source, workload.input_len))) for _ in range(workload.num_prompts)
    )
    return Drawn(prompts, tuple(_pick(source, workload.output_len) for _ in range(workload.num_prompts)))


def read_length(text: str) -> Length:
    """`128`, or `100:1024` for a uniform range with both ends. Raises ValueError."""
    low, colon, high = text.partition(":")
    if not colon:
        length = int(low)
        if length < 1:
            raise ValueError("at least 1")
        return length
    if not 1 <= int(low) <= int(high):
        raise ValueError("low end first, both at least 1")
    return int(low), int(high)


def _pick(source: random.Random, length: Length) -> int:
    return length if isinstance(length, int) else source.randint(*length)
