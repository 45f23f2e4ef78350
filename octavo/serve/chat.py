"""/v1/chat/completions: messages, answered."""

from __future__ import annotations

import msgspec

from octavo.serve.answers import Call, finite, token_name
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.params import check_supported, sampling_params
from octavo.serve.prompts import chat_text, make_request
from octavo.serve.schemas import (
    ChatBody,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatToken,
    ChosenToken,
)
from octavo.types import CompletionOutput, InvalidRequest, Logprob, RequestOutput


async def chat_completions(front: Front, body: ChatBody, label: str) -> Call:
    """Raises `ApiError` and `InvalidRequest`."""
    front.check_model(body.model)
    check_supported(body)
    _check_chat(body)
    params = sampling_params(body, front.model.intake)
    text, add_special_tokens = chat_text(front, body)
    body.add_special_tokens = add_special_tokens
    try:
        request = await make_request(front, text, body, params, label, add_special_tokens=add_special_tokens)
    except InvalidRequest as error:
        error.field = "messages" if error.field == "prompt" else error.field
        raise
    front.check_room([request])
    return Call(front, ChatShape(front, body), body, label, [request], [text])


def _check_chat(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        raise ApiError(400, '`tools` are not supported by this server, except with `tool_choice` "none".', param="tools")
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "`tool_choice` needs `tools`.", param="tool_choice")
    if body.functions and body.function_call != "none":
        raise ApiError(400, "`functions` are not supported by this server.", param="functions")
    if body.modalities not in (None, ["text"]):
        raise ApiError(400, '`modalities` can only be ["text"].', param="modalities")
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "`prompt_logprobs` are not given in a stream of a chat.", param="prompt_logprobs")
    if body.echo:
        raise ApiError(400, "`echo` is not supported in chats.", param="echo")


class ChatShape:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, front: Front, body: ChatBody) -> None:
        self._role = front.config.response_role
        self._tokenizer = front.model.tokenizer
        self._num_alternatives = (body.top_logprobs or 0) if body.logprobs else None
        self._as_ids = bool(body.return_tokens_as_token_ids or front.config.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)

    def choice(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct:
        return ChatChoice(
            index=index,
            message=ChatMessage(self._role, one.text),
            logprobs=self._logprobs(one),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
            token_ids=one.token_ids if self._with_ids else msgspec.UNSET,
        )

    def opening(self, index: int) -> msgspec.Struct | None:
        return ChatChunkChoice(index=index, delta=ChatDelta(role=self._role, content=""))

    def plain_delta(self, index: int, text: str) -> msgspec.Struct:
        return ChatChunkChoice(index=index, delta=ChatDelta(content=text))

    def plain(self, one: CompletionOutput) -> bool:
        return self._num_alternatives is None and not self._with_ids and one.finish_reason is None

    def delta(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct | None:
        logprobs = self._logprobs(one)
        if not (one.text or logprobs or one.finish_reason or self._with_ids):
            return None
        return ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=one.text or None),
            logprobs=logprobs,
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason if one.finish_reason else msgspec.UNSET,
            token_ids=one.token_ids if self._with_ids else msgspec.UNSET,
        )

    def _logprobs(self, one: CompletionOutput) -> ChatLogprobs | None:
        if self._num_alternatives is None or not one.logprobs:
            return None
        return ChatLogprobs([self._token(token_id, position) for token_id, position in zip(one.token_ids, one.logprobs)])

    def _token(self, token_id: int, position: dict[int, Logprob]) -> ChatToken:
        assert self._num_alternatives is not None
        chosen = self._chosen(token_id, position[token_id])
        best = sorted(position.items(), key=lambda item: item[1].rank or 0)[: self._num_alternatives]
        return ChatToken(chosen.token, chosen.logprob, chosen.bytes, [self._chosen(other, one) for other, one in best])

    def _chosen(self, token_id: int, one: Logprob) -> ChosenToken:
        name = token_name(token_id, one.decoded_token, self._as_ids)
        return ChosenToken(name, finite(one.logprob), list(self._tokenizer.token_bytes(token_id)))
