"""From what a caller gives (text or token ids, sampling parameters) to a checked `Request`: one door for `LLM` and the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from octavo.grammar.library import check
from octavo.text.detokenize import Tokenizer
from octavo.types import InvalidRequest, Request, SamplingParams, StructuredOutputs

# Sampling defaults that a model's generation_config.json may set.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class TextPrompt(TypedDict):
    """A prompt as a text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]  # the text that they are of; it is not read
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | Mapping[str, Any]  # as itself, or as one of the two


def content_of(prompt: Prompt) -> tuple[str | Sequence[int], str | None]:
    """A prompt's text or token ids, and its cache salt. Raises `InvalidRequest`."""
    if not isinstance(prompt, Mapping):
        return prompt, None
    for name in ("prompt_token_ids", "prompt"):
        if prompt.get(name) is not None:
            return prompt[name], prompt.get("cache_salt")
    raise InvalidRequest("prompt", sorted(prompt), "give it as prompt (a text) or as prompt_token_ids")


@dataclass(frozen=True)
class Intake:
    """What must be known of the model to take a request in. `tokenizer` is None where prompts are token ids only."""

    tokenizer: Tokenizer | None
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    generation_config: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the model's generation_config.json
    max_logprobs: int = 20
    stream_interval: int = 1  # tokens that a stream of deltas tells at once

    def default_params(self, **given: Any) -> SamplingParams:
        """Sampling parameters with the model's own defaults for what is not given."""
        defaults = {name: self.generation_config[name] for name in DEFAULTED if self.generation_config.get(name) is not None}
        return SamplingParams(**{**defaults, **given})

    @property
    def max_new_tokens(self) -> int | None:
        """The model's own cap on output, from its generation_config.json."""
        return self.generation_config.get("max_new_tokens")

    def request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        arrival_s: float = 0.0,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str | None = None,
        add_special_tokens: bool = True,
        must_have_room: bool = False,
    ) -> Request:
        """The request, complete. With `must_have_room` an explicit `max_tokens` that the context cannot hold is refused; else the model's
        length ends the text. Raises `InvalidRequest`."""
        params.check_vocabulary(self.vocab_size, self.max_logprobs)
        self._check_constraint(params.structured_outputs)
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("stop", params.stop, "without a tokeniser there is no text to find it in; use stop_token_ids")
        tokens = self._truncated(self._tokens(prompt, add_special_tokens), params)
        self._check_length(len(tokens), params, must_have_room)
        self._check_ids(tokens)
        return Request(
            id=request_id,
            prompt_token_ids=tuple(tokens),
            params=self._completed(params, len(tokens)),
            arrival_s=arrival_s,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
        )

    def _tokens(self, prompt: str | Sequence[int], add_special_tokens: bool) -> Sequence[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequest("prompt", prompt, "without a tokeniser a prompt must be a list of token ids")
            return self.tokenizer.encode(prompt, add_special_tokens)
        return prompt

    def _check_ids(self, tokens: Sequence[int]) -> None:
        if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) >= self.vocab_size:
            wrong = next(token for token in tokens if type(token) is not int or not 0 <= token < self.vocab_size)
            raise InvalidRequest("prompt", wrong, f"token ids are integers from 0 to {self.vocab_size - 1}")

    def _check_constraint(self, constraint: StructuredOutputs | None) -> None:
        if constraint is not None:
            if self.tokenizer is None:
                raise InvalidRequest(f"structured_outputs.{constraint.kind}", constraint.value, "a constraint on texts needs a tokeniser")
            check(constraint)

    def _truncated(self, tokens: Sequence[int], params: SamplingParams) -> Sequence[int]:
        keep = params.truncate_prompt_tokens
        if keep is None:
            return tokens
        if keep > self.max_model_len:
            raise InvalidRequest("truncate_prompt_tokens", keep, f"the model's context holds {self.max_model_len} tokens")
        return tokens[-(self.max_model_len - 1 if keep == -1 else keep) :]

    def _check_length(self, num_tokens: int, params: SamplingParams, must_have_room: bool) -> None:
        if num_tokens == 0:
            raise InvalidRequest("prompt", "", "it holds no token; give at least one")
        room = self.max_model_len - num_tokens
        if room < 1:
            raise InvalidRequest(
                "prompt",
                f"{num_tokens} tokens",
                f"this model's maximum context length is {self.max_model_len} tokens, prompt and output together, and the prompt of "
                f"{num_tokens} leaves no room for an output token; shorten it to {self.max_model_len - 1} tokens or fewer, or set "
                "truncate_prompt_tokens",
            )
        if must_have_room and params.max_tokens is not None and params.max_tokens > room:
            raise InvalidRequest(
                "max_tokens",
                params.max_tokens,
                f"this model's maximum context length is {self.max_model_len} tokens; the prompt has {num_tokens}, "
                f"so at most {room} can follow",
            )

    def _completed(self, params: SamplingParams, num_tokens: int) -> SamplingParams:
        """The parameters with what the caller left to the model."""
        room = self.max_model_len - num_tokens
        limits = [limit for limit in (params.max_tokens, self.max_new_tokens) if limit is not None]
        max_tokens = min([room, *limits])
        return params.settled(
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            eos_token_ids=self.eos_token_ids,
            bad_token_ids=self._bad_token_ids(params.bad_words),
        )

    def _bad_token_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is spelled at the start of a text and after a space, where that differs."""
        if not words:
            return ()
        if self.tokenizer is None:
            raise InvalidRequest("bad_words", words, "without a tokeniser words cannot be banned; use logit_bias or allowed_token_ids")
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for spelled in (word, " " + word.lstrip()):
                ids = tuple(self.tokenizer.encode(spelled, False))
                if ids and all(token < self.vocab_size for token in ids):
                    found[ids] = None
        return tuple(found)
