"""From a body's fields to sampling parameters: the caller's word over the model's own defaults over vLLM's."""

from __future__ import annotations

from typing import Any

from octavo.serve.constraints import constraint_of
from octavo.serve.errors import ApiError
from octavo.serve.schemas import ChatBody, CompletionBody, SamplingBody
from octavo.text.intake import Intake
from octavo.types import InvalidRequest, OutputKind, SamplingParams

COPIED = (
    "n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p", "repetition_penalty",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "prompt_logprobs", "allowed_token_ids", "bad_words", "stream_interval",
)  # fmt: skip
REFUSED = (
    "use_beam_search", "logits_processors", "prompt_embeds", "kv_transfer_params", "thinking_token_budget", "repetition_detection",
    "suffix", "audio", "truncation_side", "logprob_token_ids", "watermarking", "routed_experts_prompt_start", "ec_transfer_params",
    "mm_payload", "return_prompt_text",
)  # fmt: skip
ASKS_NOTHING = (None, False, "", [], {}, {"type": "text"}, "left")  # prompts are cut on the left
MAX_STOP_CHARACTERS = 32_768  # of all stop strings together
MAX_BAD_WORDS = 1_000


def check_supported(body: SamplingBody) -> None:
    """Raise `ApiError` for fields whose meaning would be lost if they were passed over."""
    for name in REFUSED:
        value = getattr(body, name, None)
        if value not in ASKS_NOTHING:
            raise ApiError(400, f"`{name}` is not supported by this server.", param=name)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "`stream_options` is only allowed when `stream` is true.", param="stream_options")
    if body.cache_salt == "":
        raise ApiError(400, "`cache_salt` must be a text of at least one character.", param="cache_salt")
    if body.return_cache_miss and body.cache_salt is None:
        # Without a salt prefixes are shared with everybody, and where one misses would tell what others have sent.
        message = "`return_cache_miss` needs a `cache_salt`: it tells of prefixes under the caller's own salt."
        raise ApiError(400, message, param="cache_salt")


def sampling_params(body: SamplingBody, intake: Intake) -> SamplingParams:
    """Raises `InvalidRequest` and `ApiError`."""
    given: dict[str, Any] = {name: value for name in COPIED if (value := getattr(body, name)) is not None}
    given["structured_outputs"] = constraint_of(body)
    given["output_kind"] = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    if body.logit_bias is not None:
        given["logit_bias"] = _logit_bias(body.logit_bias)
    if sum(map(len, given.get("stop", ()))) > MAX_STOP_CHARACTERS:
        raise InvalidRequest("stop", f"{len(given['stop'])} strings", f"at most {MAX_STOP_CHARACTERS} characters in all")
    if len(given.get("bad_words", ())) > MAX_BAD_WORDS:
        raise InvalidRequest("bad_words", f"{len(given['bad_words'])} words", f"at most {MAX_BAD_WORDS}")
    own = _completion_fields(body) if isinstance(body, CompletionBody) else _chat_fields(body) if isinstance(body, ChatBody) else {}
    return intake.default_params(**{**given, **own})


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        bad = next(token for token in bias if not token.strip().removeprefix("-").isdecimal())
        raise InvalidRequest("logit_bias", bad, "its keys are token ids") from None


def _completion_fields(body: CompletionBody) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.max_tokens is not None:
        # Nothing but the echo of the prompt is wanted: one token is made and not shown.
        fields["max_tokens"] = 1 if body.echo and body.max_tokens == 0 else body.max_tokens
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            fields["prompt_logprobs"] = body.logprobs
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(400, "`best_of` is not supported; ask for `n` texts and choose among them.", param="best_of")
    return fields


def _chat_fields(body: ChatBody) -> dict[str, Any]:
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    fields: dict[str, Any] = {"max_tokens": min(limits, default=None)}
    if body.top_logprobs is not None:
        if not body.logprobs and body.top_logprobs != 0:
            raise ApiError(400, "`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
        if body.top_logprobs < 0:
            raise InvalidRequest("top_logprobs", body.top_logprobs, "it must be at least 0")
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    return fields
