"""Greedy texts of two engines: where a token differs, is it a tie?

The reference tells by how much it preferred its own token. Rounding decides between tokens that are nearly alike, and the text after them
is another; so it goes on with the reference's token after each difference, until all were compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.types import RequestOutput, SamplingParams

NUM_SHOWN = 20
TIE = 0.25  # of what lies between the best token and the 20th: about a fifth of the standard deviation of logits that are spread normally


class Generator(Protocol):
    """The part of `LLM` that is asked."""

    def generate(
        self, prompts: Sequence[Mapping[str, Any]], sampling_params: SamplingParams, use_tqdm: bool
    ) -> Sequence[RequestOutput]: ...


@dataclass(frozen=True)
class Told:
    """What a reference said after a prompt, and at each place the best tokens there were, each with its log-probability."""

    prompt: Sequence[int]
    token_ids: Sequence[int]
    best: Sequence[Sequence[tuple[int, float]]]


@dataclass(frozen=True)
class Difference:
    place: int
    token: int
    behind: float  # of log-probability, the reference's own token; infinite where this one is none of its best
    tie: bool


def tell(llm: Generator, prompt: Sequence[int], num_tokens: int) -> Told:
    output = _ask(llm, prompt, num_tokens, NUM_SHOWN)
    assert output.logprobs is not None
    best = [[(token, one.logprob) for token, one in place.items()] for place in output.logprobs]
    return Told(list(prompt), list(output.token_ids), best)


def differences(llm: Generator, told: Told) -> list[Difference]:
    """Where this engine says something else."""
    found: list[Difference] = []
    done = 0
    while done < len(told.token_ids):
        expected = told.token_ids[done:]
        said = _ask(llm, [*told.prompt, *told.token_ids[:done]], len(expected), None).token_ids
        place = next((place for place, (one, other) in enumerate(zip(said, expected)) if one != other), None)
        if place is None:
            break
        found.append(_difference(told, done + place, said[place]))
        done += place + 1
    return found


def _difference(told: Told, place: int, token: int) -> Difference:
    best = {one: logprob for one, logprob in told.best[place]}
    top = max(best.values())
    behind = top - best.get(token, float("-inf"))
    return Difference(place, token, behind, behind <= TIE * (top - min(best.values())))


def _ask(llm: Generator, prompt: Sequence[int], num_tokens: int, logprobs: int | None) -> Any:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_tokens, detokenize=False, logprobs=logprobs)
    return llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)[0].outputs[0]
