"""/v1/responses: OpenAI's newer form of chats. The whole answer is built by the same steps that a stream tells one by one."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from octavo.serve import sse
from octavo.serve.chat import make_chat
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.serve.responses_input import ResponsesBody, as_chat
from octavo.serve.told import Told

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(msgspec.Struct):
    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list[Any])
    logprobs: list[Any] = msgspec.field(default_factory=list[Any])
    type: str = "output_text"


class ReasoningText(msgspec.Struct):
    text: str = ""
    type: str = "reasoning_text"


class MessageItem(msgspec.Struct, tag="message"):
    id: str
    content: list[OutputText] = msgspec.field(default_factory=list[OutputText])
    role: str = "assistant"
    status: Status = "in_progress"


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    id: str
    content: list[ReasoningText] = msgspec.field(default_factory=list[ReasoningText])
    summary: list[Any] = msgspec.field(default_factory=list[Any])
    status: Status = "in_progress"


class FunctionCallItem(msgspec.Struct, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseError(msgspec.Struct):
    code: str
    message: str


class ResponseAnswer(msgspec.Struct, kw_only=True):
    id: str
    created_at: int
    model: str
    status: Status = "in_progress"
    output: list[Item] = msgspec.field(default_factory=list[Item])
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    # What was asked, as it was understood
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str
    user: str | None
    background: bool = False
    previous_response_id: None = None
    service_tier: str = "default"
    store: bool = False
    object: str = "response"


async def responses(front: Front, body: ResponsesBody, label: str) -> Responding:
    """Raises `ApiError` and `InvalidRequest`."""
    chat = await make_chat(front, as_chat(body), label)
    params = chat.request.params
    answer = ResponseAnswer(
        id=f"resp_{label.removeprefix('resp-')}",
        created_at=int(time.time()),
        model=front.model.names[0],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning={"effort": None, "summary": None, **(body.reasoning or {})},
        temperature=params.temperature,
        text=body.text or {"format": {"type": "text"}},
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
    return Responding(front, Told(front, chat), answer)


class Responding:
    """One call: fills the answer, and says each step of it as an event."""

    def __init__(self, front: Front, told: Told, answer: ResponseAnswer) -> None:
        self._front = front
        self._told = told
        self._answer = answer
        self._number = 0  # of the next event

    async def whole(self) -> bytes:
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return sse.encode(self._answer)

    async def events(self) -> AsyncGenerator[bytes]:
        async with aclosing(self._told.parts()) as steps:
            async for parts in steps:
                opening = b"" if self._number else self._whole_event("response.created") + self._whole_event("response.in_progress")
                news = opening + b"".join(event for part in parts for event in self._take(part))
                if news:
                    yield news
        yield b"".join(self._close_last(self._last_status())) + self._end()

    def failure(self, error: ApiError) -> bytes:
        self._answer.status = "failed"
        self._answer.error = ResponseError("server_error", error.reply.error.message)
        return self._whole_event("response.failed")

    # ---- events

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse.named_event(kind, {"type": kind, "sequence_number": self._number - 1, **fields})

    def _whole_event(self, kind: str) -> bytes:
        return self._event(kind, response=self._answer)

    def _take(self, part: Part) -> Iterator[bytes]:
        match part:
            case Content(text):
                item = yield from self._continued(MessageItem, "msg")
                item.content[0].text += text
                yield self._event("response.output_text.delta", **self._place(item), content_index=0, delta=text, logprobs=[])
            case Reasoning(text):
                item = yield from self._continued(ReasoningItem, "rs")
                item.content[0].text += text
                yield self._event("response.reasoning_text.delta", **self._place(item), content_index=0, delta=text)
            case CallBegin(call, name):
                yield from self._close_last("completed")
                yield self._open(FunctionCallItem(self._item_id("fc"), self._told.call_id(call), name))
            case CallArguments(_, text):
                item = self._answer.output[-1]
                assert isinstance(item, FunctionCallItem)
                item.arguments += text
                yield self._event("response.function_call_arguments.delta", **self._place(item), delta=text)

    def _continued(self, kind: type[MessageItem] | type[ReasoningItem], prefix: str) -> Generator[bytes, None, Any]:
        """The item that text of this kind goes to: the last one, or else a new one, whose events come first."""
        output = self._answer.output
        if not output or not isinstance(output[-1], kind):
            yield from self._close_last("completed")
            yield self._open(kind(self._item_id(prefix)))
            part = OutputText() if kind is MessageItem else ReasoningText()
            output[-1].content.append(part)  # pyright: ignore
            yield self._event("response.content_part.added", **self._place(output[-1]), content_index=0, part=part)
        return output[-1]

    def _open(self, item: Item) -> bytes:
        self._answer.output.append(item)
        return self._event("response.output_item.added", output_index=len(self._answer.output) - 1, item=item)

    def _close_last(self, status: Status) -> Iterator[bytes]:
        if not self._answer.output:
            return
        item = self._answer.output[-1]
        item.status = status
        place = self._place(item)
        match item:
            case FunctionCallItem():
                yield self._event("response.function_call_arguments.done", **place, name=item.name, arguments=item.arguments)
            case MessageItem(content=[part]):
                yield self._event("response.output_text.done", **place, content_index=0, text=part.text, logprobs=[])
                yield self._event("response.content_part.done", **place, content_index=0, part=part)
            case ReasoningItem(content=[part]):
                yield self._event("response.reasoning_text.done", **place, content_index=0, text=part.text)
                yield self._event("response.content_part.done", **place, content_index=0, part=part)
            case _:
                raise AssertionError("an item of text has one part")
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)

    def _place(self, item: Item) -> dict[str, Any]:
        return {"item_id": item.id, "output_index": len(self._answer.output) - 1}

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._answer.id.removeprefix('resp_')}_{len(self._answer.output)}"

    # ---- the end

    def _last_status(self) -> Status:
        return "incomplete" if self._told.finish_reason in ("length", "abort") else "completed"

    def _end(self) -> bytes:
        answer, told = self._answer, self._told
        answer.usage = ResponseUsage(
            told.num_prompt_tokens,
            InputDetails(told.num_cached_tokens),
            told.num_output_tokens,
            OutputDetails(self._num_reasoning_tokens()),
            told.num_prompt_tokens + told.num_output_tokens,
        )
        if told.finish_reason == "length":
            answer.status, answer.incomplete_details = "incomplete", IncompleteDetails("max_output_tokens")
            return self._whole_event("response.incomplete")
        if told.finish_reason == "abort":
            answer.status, answer.error = "failed", ResponseError("server_error", "The request was aborted: the server is shutting down.")
            return self._whole_event("response.failed")
        answer.status = "completed"
        return self._whole_event("response.completed")

    def _num_reasoning_tokens(self) -> int:
        texts = [item.content[0].text for item in self._answer.output if isinstance(item, ReasoningItem)]
        return sum(len(self._front.model.tokenizer.encode(text, False)) for text in texts)
