"""What is asked of a server: arrivals in the simulator's own form, and for each the prompt that a real model gets.

Arrivals are drawn by `octavo.simulate.load` from the same seeds, so the simulator meets the same requests at the same times. Its prompts
are made up (one token repeated, equal where prompts begin alike); a `Voice` says them in many tokens, again equal exactly where those are.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from octavo.bench.serving.client import Ask
from octavo.bench.workloads import LOWEST_ID, Drawn
from octavo.simulate.load import Arrival, Kind, Length, Load, Synthetic, Trace
from octavo.types import InvalidRequest

ONE_TOKEN = Kind(1, 1)  # of arrivals whose times alone count
MADE_UP_RUNS = 2  # a made-up prompt is a shared beginning and a rest; more runs of equal tokens are ids of a real recording
NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case week "
    "company system program question work government number night point home water room mother area money story fact month lot right study "
    "book eye job word business issue side kind head house service friend father power hour game line end member law car city community"
)
WORDS = NOUNS.split()  # of one token each in most vocabularies, with the space before them


@dataclass(frozen=True)
class Pace:
    """How requests come: at `rate` a second with gaps of a gamma distribution; at rate inf as soon as one of `concurrency` is free."""

    num_prompts: int
    rate: float = inf
    burstiness: float = 1.0
    concurrency: int | None = None
    seed: int = 1

    def load(self, kind: Kind = ONE_TOKEN, shared_len: int = 0, num_shared: int = 1) -> Synthetic:
        """Arrivals without end where a rate is given: take the first `num_prompts`."""
        users = 0 if self.rate < inf else self.concurrency or self.num_prompts
        return Synthetic(
            (kind,), self.rate, inf, self.burstiness, users, self.num_prompts, shared_len=shared_len, num_shared=num_shared, seed=self.seed
        )


@dataclass(frozen=True)
class Dataset:
    """Arrivals, and what each asks."""

    load: Load
    ask: Callable[[Arrival], Ask]
    num_prompts: int


@dataclass(frozen=True)
class Voice:
    """Says made-up prompts in tokens below `vocab_size`, or in words."""

    seed: int
    vocab_size: int
    in_words: bool

    def ask(self, arrival: Arrival) -> Ask:
        return Ask(self._words(arrival.tokens) if self.in_words else self._ids(arrival.tokens), arrival.output_len)

    def _ids(self, tokens: Sequence[int]) -> list[int]:
        runs = _runs(tokens)
        if len(runs) > MADE_UP_RUNS:
            return list(tokens)
        ids = range(min(LOWEST_ID, self.vocab_size - 1), self.vocab_size)
        return [spoken for token, count in runs for spoken in self._stream(token).choices(ids, k=count)]

    def _words(self, tokens: Sequence[int]) -> str:
        runs = _runs(tokens)
        if len(runs) > MADE_UP_RUNS:
            return " ".join(WORDS[token % len(WORDS)] for token in tokens)
        return " ".join(word for token, count in runs for word in self._stream(token).choices(WORDS, k=count))

    def _stream(self, token: int) -> random.Random:
        """Numbers of this token's own: a longer run goes on where a shorter one ends."""
        return random.Random(f"{self.seed} {token}")


def _runs(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Equal tokens in a row: which, and how many."""
    return [(token, sum(1 for _ in same)) for token, same in groupby(tokens)]


def spread_length(middle: int, ratio: float) -> Length:
    """A uniform range around `middle`, by a share of it to both sides, as vLLM's `--random-range-ratio` has it."""
    return (max(1, floor(middle * (1 - ratio))), ceil(middle * (1 + ratio))) if ratio else middle


def made_up(pace: Pace, kind: Kind, voice: Voice, shared_len: int = 0, num_shared: int = 1) -> Dataset:
    """Prompts of these lengths, after one of `num_shared` beginnings that they share with others."""
    return Dataset(pace.load(kind, shared_len, num_shared), voice.ask, pace.num_prompts)


def listed(pace: Pace, asks: Sequence[Ask]) -> Dataset:
    """These prompts in their order, from the beginning again when they are all used."""
    return Dataset(pace.load(), lambda arrival: asks[arrival.session % len(asks)], pace.num_prompts)


def drawn_case(pace: Pace, drawn: Drawn) -> Dataset:
    """The very prompts of `octavo bench throughput --case`."""
    return listed(pace, [Ask(list(prompt), length) for prompt, length in zip(drawn.prompts, drawn.output_lens)])


def recorded(path: Path, num_prompts: int | None, voice: Voice) -> Dataset:
    """A trace as `octavo simulate --trace` reads it, at the times that it says. Raises `InvalidRequest` and OSError."""
    trace = Trace.read(path)
    return Dataset(trace, voice.ask, min(num_prompts or len(trace.arrivals), len(trace.arrivals)))


# ---- conversations from a file


@dataclass(frozen=True)
class Exchange:
    """What a user said first, and the answer's text."""

    prompt: str
    answer: str


def read_conversations(path: Path) -> list[Exchange]:
    """ShareGPT's form (a list of `conversations` with `from` and `value`), also with `messages` of `role` and `content`, as one JSON list
    or one object a line. Those without a first pair are left out. Raises `InvalidRequest` and OSError."""
    text = path.read_text(encoding="utf-8")
    try:
        entries = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.split("\n") if line.strip()]
        found = [exchange for entry in entries if (exchange := _exchange(entry)) is not None]
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest("dataset_path", str(path), f"conversations in ShareGPT's form are needed ({error})") from None
    if not found:
        raise InvalidRequest("dataset_path", str(path), "the file has no conversation with a question and an answer")
    return found


def _exchange(entry: Mapping[str, Any]) -> Exchange | None:
    turns: Iterable[Mapping[str, Any]] = entry.get("conversations") or entry.get("messages") or ()
    said = [(turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))) for turn in turns]
    said = [(who, text) for who, text in said if who != "system" and isinstance(text, str) and text]
    return Exchange(said[0][1], said[1][1]) if len(said) > 1 else None


def choose_conversations(
    exchanges: Sequence[Exchange], lengths: Sequence[tuple[int, int]], pace: Pace, output_len: int | None, longest: int
) -> list[Ask]:
    """Those whose tokens, question and answer, fit in `longest`, in an order drawn from the seed; `output_len` replaces answers' lengths.

    Raises `InvalidRequest` where none fits.
    """
    asks = [
        Ask(exchange.prompt, output_len or num_answer)
        for exchange, (num_prompt, num_answer) in zip(exchanges, lengths, strict=True)
        if num_answer > 0 and num_prompt + (output_len or num_answer) <= longest
    ]
    if not asks:
        raise InvalidRequest("sharegpt_max_len", longest, "no conversation of the file is that short")
    random.Random(pace.seed).shuffle(asks)
    return asks


# ---- what was sent, for the simulator


def trace_line(arrival: Arrival, at_s: float, num_prompt: int, num_output: int) -> dict[str, Any]:
    """One line of a trace: when the request was sent, its lengths as the server counted them, and which others begin alike."""
    runs = _runs(arrival.tokens)
    line: dict[str, Any] = {"arrival_s": round(at_s, 6), "prompt_tokens": num_prompt, "output_tokens": num_output}
    if len(runs) > MADE_UP_RUNS:
        del line["prompt_tokens"]
        return {**line, "prompt_token_ids": list(arrival.tokens)}
    if len(runs) == MADE_UP_RUNS:
        line |= {"prefix": str(runs[0][0]), "prefix_tokens": min(runs[0][1], num_prompt)}
    elif len(arrival.tokens) > 1:
        line["session"] = str(runs[0][0])
    return line
