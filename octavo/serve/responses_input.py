"""The body of /v1/responses, and the chat that it comes to. Nothing is stored here, so nothing stored can be referred to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.serve.errors import ApiError
from octavo.serve.schemas import ChatBody
from octavo.types import InvalidRequest

Message = dict[str, Any]


class ResponsesBody(msgspec.Struct, kw_only=True):
    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    user: str | None = None
    # Refused while they ask for something
    background: bool | None = None
    conversation: Any = None
    previous_response_id: str | None = None
    prompt: Any = None
    top_logprobs: int | None = None
    # Known, and without effect here
    store: bool | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    stream_options: Any = None
    context_management: Any = None
    # As in chats
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None


NOT_STORED = "this server stores no responses; send the whole conversation as `input`"
REFUSED = {
    "background": "answers come in the call that asks for them",
    "conversation": NOT_STORED,
    "previous_response_id": NOT_STORED,
    "prompt": "this server stores no prompts; send the text as `input` and `instructions`",
    "top_logprobs": "use /v1/chat/completions for log-probabilities",
}
SAME_IN_CHATS = (
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "logit_bias", "ignore_eos", "min_tokens", "chat_template_kwargs", "priority", "cache_salt",
    "user",
)  # fmt: skip


def as_chat(body: ResponsesBody) -> ChatBody:
    """Raises `ApiError` and `InvalidRequest`."""
    for name, reason in REFUSED.items():
        if getattr(body, name):
            raise ApiError(400, f"`{name}` is not supported: {reason}.", param=name)
    if body.truncation not in (None, "auto", "disabled"):
        raise InvalidRequest("truncation", body.truncation, 'use "auto" or "disabled"')
    messages: list[Message] = [] if not body.instructions else [{"role": "system", "content": body.instructions}]
    messages += [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _messages(body.input)
    chat = ChatBody(messages=messages, **{name: getattr(body, name) for name in SAME_IN_CHATS})
    chat.max_completion_tokens = body.max_output_tokens
    chat.tools = None if body.tools is None else [_tool(number, tool) for number, tool in enumerate(body.tools)]
    chat.tool_choice = _tool_choice(body.tool_choice)
    chat.response_format = _response_format(body.text)
    chat.reasoning_effort = (body.reasoning or {}).get("effort")
    return chat


def _messages(items: list[dict[str, Any]]) -> list[Message]:
    """Messages as chat templates know them. Calls that follow each other, and what was thought before, belong to one message."""
    messages: list[Message] = []
    thought = ""
    for number, item in enumerate(items):
        field = f"input[{number}]"
        match item.get("type", "message"):
            case "message":
                message: Message = {"role": _role(item.get("role"), field), "content": _content(item.get("content"), field)}
            case "function_call":
                call = {"name": _text(item, "name", field), "arguments": _text(item, "arguments", field)}
                message = {"role": "assistant", "content": None}
                if messages and messages[-1]["role"] == "assistant" and not thought:
                    message = messages.pop()
                made = {"id": _text(item, "call_id", field), "type": "function", "function": call}
                message["tool_calls"] = [*message.get("tool_calls", ()), made]
            case "function_call_output":
                message = {"role": "tool", "tool_call_id": _text(item, "call_id", field), "content": _content(item.get("output"), field)}
            case "reasoning":
                thought += _thought(item)
                continue
            case other:
                raise InvalidRequest(f"{field}.type", other, "use message, function_call, function_call_output or reasoning")
        if thought and message["role"] == "assistant":
            message["reasoning_content"], thought = thought, ""
        messages.append(message)
    return messages


def _role(role: Any, field: str) -> str:
    if role not in ("user", "assistant", "system", "developer"):
        raise InvalidRequest(f"{field}.role", role, "use user, assistant, system or developer")
    return "system" if role == "developer" else role


def _content(content: Any, field: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InvalidRequest(f"{field}.content", content, "a text or a list of parts is needed")
    return content  # the template's own check knows the kinds of parts


def _text(item: Mapping[str, Any], name: str, field: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}.{name}", value, "a text is needed")
    return value


def _thought(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or ()
    return "".join(part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str))


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise InvalidRequest(f"tools[{number}].type", tool.get("type"), 'only "function" is supported; this server runs no tools itself')
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    match choice:
        case {"type": "function", "name": name}:
            return {"type": "function", "function": {"name": name}}
        case _:
            return choice


def _response_format(text: Mapping[str, Any] | None) -> Any:
    match (text or {}).get("format"):
        case {"type": "json_schema", **schema}:
            return {"type": "json_schema", "json_schema": schema}
        case other:
            return other
