"""The bodies of requests and answers, typed once. Field names and meanings are OpenAI's and vLLM's.

Fields typed `Any` are known to clients but change nothing here, or are checked where they are used.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any, TypeVar

import msgspec

from octavo.serve.errors import ApiError, of_schema

log = logging.getLogger("octavo.serve")
LARGE_BODY_BYTES = 256_000
MAX_DEPTH = 64  # nested lists and objects in a body
T = TypeVar("T", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """What completions and chats have in common. None: not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    user: Any = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stream_interval: int | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    return_cache_miss: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    # At most one constraint, see octavo/serve/constraints.py
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    # Refused while they ask for something, see octavo/serve/params.py
    use_beam_search: Any = None
    logits_processors: Any = None
    prompt_embeds: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    truncation_side: Any = None
    logprob_token_ids: Any = None
    watermarking: Any = None
    routed_experts_prompt_start: Any = None
    mm_payload: Any = None
    # Known, and without effect here
    length_penalty: Any = None
    vllm_xargs: Any = None
    session_id: Any = None
    return_token_offsets: Any = None
    return_mm_kwargs: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class CompletionBody(SamplingBody, kw_only=True):
    prompt: Any
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatBody(SamplingBody, kw_only=True):
    messages: list[Any]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    return_prompt_text: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    # Known, and without effect here
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatBody(ChatBody, kw_only=True):
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET


class OctavoFacts(msgspec.Struct):
    """What only this server tells: how much of the prompt was cached, and why not more."""

    num_cached_tokens: int
    cache_miss: str | msgspec.UnsetType | None = msgspec.UNSET  # only told under a salt of the caller's own
    advice: str | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChosenToken(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(ChosenToken):
    top_logprobs: list[ChosenToken]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]
    refusal: None = None


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """In a stream the name comes first, then the arguments piece by piece."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    index: int
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET  # vLLM's newer name of the same


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer, or one chunk of a stream; `object` says of what kind."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    octavo: OctavoFacts | msgspec.UnsetType = msgspec.UNSET


_reported: set[str] = set()


async def parse(body: bytes, kind: type[T]) -> T:
    """A body as what it should be, worked out by a thread where that takes long. Raises `ApiError` and what `convert` raises."""

    def parsed() -> T:
        return convert(parse_json(body), kind)

    if len(body) <= LARGE_BODY_BYTES:
        return parsed()
    gc.disable()  # or it would look for garbage among millions of new lists again and again, and all would wait for it
    try:
        return await asyncio.to_thread(parsed)
    finally:
        gc.enable()


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises `ApiError` for anything else: broken JSON, NaN, too deep."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise ApiError(400, f"The body is nested more than {MAX_DEPTH} levels deep.")
    return value


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inside = (inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer))
        level = [inner for inner in inside if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """The object as a typed body. A field that nobody knows is let pass, with one line in the log for each name."""
    known = kind.__struct_fields__
    for name in value:
        if name not in known and name not in _reported and len(_reported) < 1000:
            _reported.add(name)
            log.warning("unknown field %.100r in a request is ignored", name)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise of_schema(str(error), value) from None
