"""/v1/messages: chats in Anthropic's form. The whole answer is built by the same steps that a stream tells one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import msgspec

from octavo.serve import sse
from octavo.serve.chat import make_chat
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.messages_input import MessagesBody, as_chat
from octavo.serve.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.serve.told import Told

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {404: "not_found_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


class TextBlock(msgspec.Struct, tag="text"):
    text: str = ""


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class MessageUsage(msgspec.Struct):
    """`input_tokens` are those that were not cached."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageAnswer(msgspec.Struct, kw_only=True):
    id: str
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock] = msgspec.field(default_factory=list[Any])
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    role: str = "assistant"
    type: str = "message"


async def messages(front: Front, body: MessagesBody, label: str) -> Writing:
    """Raises `ApiError` and `InvalidRequest`."""
    chat = await make_chat(front, as_chat(body), label)
    return Writing(Told(front, chat), f"msg_{label.removeprefix('msg-')}", front.model.names[0])


def error_body(error: ApiError) -> bytes:
    """Anthropic's shape around OpenAI's: either kind of client finds what it looks for."""
    return sse.encode(_error(error))


def _error(error: ApiError) -> dict[str, Any]:
    told = error.reply.error
    kind = ERROR_TYPES.get(error.status, told.type)
    return {"type": "error", "error": {"type": kind, "message": told.message, "param": told.param, "code": told.code}}


class Writing:
    """One call: fills the answer, and says each step of it as an event."""

    def __init__(self, told: Told, answer_id: str, model: str) -> None:
        self._told = told
        self._answer = MessageAnswer(id=answer_id, model=model, usage=MessageUsage(0, 0, 0))
        self._arguments = ""  # of the last block, a call that grows
        self._begun = False

    async def whole(self) -> bytes:
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return sse.encode(self._answer)

    async def events(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._told.parts()) as steps:
            async for parts in steps:
                news = (b"" if self._begun else self._begin()) + b"".join(event for part in parts for event in self._take(part))
                if news:
                    yield news
        yield b"".join(self._close_last()) + self._end()

    def failure(self, error: ApiError) -> bytes:
        return sse.named_event("error", _error(error))

    def _begin(self) -> bytes:
        self._begun = True
        self._count()
        return _event("message_start", message=self._answer)

    def _take(self, part: Part) -> Iterator[bytes]:
        content = self._answer.content
        match part:
            case Content(text):
                if not content or not isinstance(content[-1], TextBlock):
                    yield from self._open(TextBlock())
                block = content[-1]
                assert isinstance(block, TextBlock)
                block.text += text
                yield self._delta(type="text_delta", text=text)
            case Reasoning(text):
                if not content or not isinstance(content[-1], ThinkingBlock):
                    yield from self._open(ThinkingBlock())
                block = content[-1]
                assert isinstance(block, ThinkingBlock)
                block.thinking += text
                yield self._delta(type="thinking_delta", thinking=text)
            case CallBegin(call, name):
                yield from self._open(ToolUseBlock(self._told.call_id(call), name))
            case CallArguments(_, text):
                self._arguments += text
                yield self._delta(type="input_json_delta", partial_json=text)

    def _open(self, block: TextBlock | ThinkingBlock | ToolUseBlock) -> Iterator[bytes]:
        yield from self._close_last()
        self._answer.content.append(block)
        yield _event("content_block_start", index=len(self._answer.content) - 1, content_block=block)

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=len(self._answer.content) - 1, delta=delta)

    def _close_last(self) -> Iterator[bytes]:
        if not self._answer.content:
            return
        block = self._answer.content[-1]
        if isinstance(block, ToolUseBlock):
            block.input, self._arguments = _object(self._arguments), ""
        yield _event("content_block_stop", index=len(self._answer.content) - 1)

    def _end(self) -> bytes:
        answer, told = self._answer, self._told
        if told.finish_reason == "abort":
            raise ApiError(503, "The request was aborted: the server is shutting down.", code="shutting_down")
        stopped = told.finish_reason == "stop" and isinstance(told.stop_reason, str)
        called = any(isinstance(block, ToolUseBlock) for block in answer.content) and told.finish_reason != "length"
        answer.stop_reason = (
            "tool_use" if called else "stop_sequence" if stopped else STOP_REASONS.get(told.finish_reason or "", "end_turn")
        )
        answer.stop_sequence = told.stop_reason if stopped and isinstance(told.stop_reason, str) else None
        self._count()
        delta = {"stop_reason": answer.stop_reason, "stop_sequence": answer.stop_sequence}
        return _event("message_delta", delta=delta, usage=answer.usage) + _event("message_stop")

    def _count(self) -> None:
        told = self._told
        self._answer.usage = MessageUsage(told.num_prompt_tokens - told.num_cached_tokens, told.num_output_tokens, told.num_cached_tokens)


def _event(kind: str, **fields: Any) -> bytes:
    return sse.named_event(kind, {"type": kind, **fields})


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; none where the model wrote no object, or its end was cut off."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
