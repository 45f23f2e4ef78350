"""/v1/chat/completions: messages, answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from octavo.serve.answer_format import Answered, AnswerFormat, adapted, answer_format, tool_use
from octavo.serve.answers import Call, finite, token_name
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.params import check_supported, sampling_params
from octavo.serve.parts import AnswerReader, CallArguments, CallBegin, Content, Part, Reasoning
from octavo.serve.prompts import chat_text, make_request
from octavo.serve.schemas import (
    CalledFunction,
    ChatBody,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatToken,
    ChosenToken,
    ToolCall,
    ToolCallDelta,
)
from octavo.types import CompletionOutput, InvalidRequest, Logprob, Request, RequestOutput


@dataclass(frozen=True)
class Chat:
    """A chat, checked and ready to run."""

    request: Request
    prompt: str
    form: AnswerFormat


async def chat_completions(front: Front, body: ChatBody, label: str) -> Call:
    """Raises `ApiError` and `InvalidRequest`."""
    chat = await make_chat(front, body, label)
    return Call(front, ChatShape(front, body, chat.form, chat.request.id), body, label, [chat.request], [chat.prompt])


async def make_chat(front: Front, body: ChatBody, label: str) -> Chat:
    """Raises `ApiError` and `InvalidRequest`."""
    front.check_model(body.model)
    check_supported(body)
    _check_chat(body)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    text, add_special_tokens = await chat_text(front, body)
    body.add_special_tokens = add_special_tokens
    form = answer_format(front.config, use, text)
    params = adapted(sampling_params(body, front.model.intake), form, front.model.tokenizer)
    try:
        request = await make_request(front, text, body, params, label, add_special_tokens=add_special_tokens)
    except InvalidRequest as error:
        error.field = "messages" if error.field == "prompt" else error.field
        raise
    front.check_room([request])
    return Chat(request, text, form)


def _check_chat(body: ChatBody) -> None:
    if body.functions and body.function_call != "none":
        raise ApiError(400, "`functions` are not supported; their newer form is `tools`.", param="functions")
    if body.modalities not in (None, ["text"]):
        raise ApiError(400, '`modalities` can only be ["text"].', param="modalities")
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "`prompt_logprobs` are not given in a stream of a chat.", param="prompt_logprobs")
    if body.echo:
        raise ApiError(400, "`echo` is not supported in chats.", param="echo")


class ChatShape:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, front: Front, body: ChatBody, form: AnswerFormat, request_id: str) -> None:
        self._form = form
        self.plain = form.plain
        self._request_id = request_id
        self._with_reasoning = body.include_reasoning is not False
        self._readers: dict[int, AnswerReader] = {}  # of a stream, by the choice's number
        self._role = front.config.response_role
        self._tokenizer = front.model.tokenizer
        self._num_alternatives = (body.top_logprobs or 0) if body.logprobs else None
        self._as_ids = bool(body.return_tokens_as_token_ids or front.config.return_tokens_as_token_ids)
        self._with_ids = bool(body.return_token_ids)

    @property
    def by_text(self) -> bool:
        return self._num_alternatives is None and not self._with_ids

    def choice(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct:
        reader = self._form.reader()
        return ChatChoice(
            index=index,
            message=self._message(index, Answered.of(reader.push(one.text, last=True))),
            logprobs=self._logprobs(one),
            finish_reason=self._form.finish_reason(one.finish_reason, reader.num_calls),
            stop_reason=one.stop_reason,
            token_ids=one.token_ids if self._with_ids else msgspec.UNSET,
        )

    def _message(self, index: int, answered: Answered) -> ChatMessage:
        message = ChatMessage(self._role, answered.content)
        if answered.calls:
            message.tool_calls = [
                ToolCall(self._form.call_id(self._request_id, index, call), CalledFunction(name, arguments))
                for call, (name, arguments) in enumerate(answered.calls)
            ]
        if answered.reasoning and self._with_reasoning:
            message.reasoning_content = message.reasoning = answered.reasoning
        if not answered.content and (answered.calls or answered.reasoning):
            message.content = None
        return message

    def opening(self, index: int) -> msgspec.Struct | None:
        return ChatChunkChoice(index=index, delta=ChatDelta(role=self._role, content=""))

    def news(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> Iterable[str | msgspec.Struct]:
        parts = self._parts(index, one.text, last=one.finish_reason is not None)
        if self.by_text and one.finish_reason is None:
            return [part.text if isinstance(part, Content) else self.delta(index, part) for part in parts]
        choices = [self.delta(index, part) for part in parts]
        logprobs = self._logprobs(one)
        if logprobs or one.finish_reason or self._with_ids:
            last = choices[-1] if choices else ChatChunkChoice(index=index, delta=ChatDelta())
            last.logprobs = logprobs
            if one.finish_reason:
                num_calls = self._readers[index].num_calls if index in self._readers else 0
                last.finish_reason, last.stop_reason = self._form.finish_reason(one.finish_reason, num_calls), one.stop_reason
            if self._with_ids:
                last.token_ids = one.token_ids
            return choices or [last]
        return choices

    def reader(self, index: int) -> Callable[[str], Sequence[Part]]:
        reads_all = self._with_reasoning and not self.plain
        return self._reader(index).push if reads_all else partial(self._parts, index)

    def _parts(self, index: int, text: str, last: bool = False) -> Sequence[Part]:
        if self.plain:
            return [Content(text)] if text else []
        parts = self._reader(index).push(text, last=last)
        return parts if self._with_reasoning else [part for part in parts if not isinstance(part, Reasoning)]

    def _reader(self, index: int) -> AnswerReader:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._form.reader()
        return reader

    def delta(self, index: int, part: Part) -> ChatChunkChoice:
        match part:
            case Content(text):
                delta = ChatDelta(content=text)
            case Reasoning(text):
                delta = ChatDelta(reasoning_content=text, reasoning=text)
            case CallBegin(call, name):
                call_id = self._form.call_id(self._request_id, index, call)
                delta = ChatDelta(tool_calls=[ToolCallDelta(call, call_id, "function", CalledFunction(name, ""))])
            case CallArguments(call, text):
                delta = ChatDelta(tool_calls=[ToolCallDelta(call, function=CalledFunction(arguments=text))])
        return ChatChunkChoice(index=index, delta=delta)

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
