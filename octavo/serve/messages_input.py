"""The body of /v1/messages (Anthropic's form), and the chat that it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.serve.errors import ApiError
from octavo.serve.schemas import ChatBody
from octavo.types import InvalidRequest

Message = dict[str, Any]


class AnthropicMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class CountBody(msgspec.Struct, kw_only=True):
    """What makes the prompt."""

    messages: list[AnthropicMessage]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Known, and without effect here
    metadata: Any = None
    service_tier: Any = None
    container: Any = None
    context_management: Any = None
    output_config: Any = None
    # As in chats
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None


def as_chat(body: MessagesBody) -> ChatBody:
    """Raises `ApiError` and `InvalidRequest`."""
    chat = prompt_of(body)
    chat.stream = body.stream
    chat.user = body.metadata.get("user_id") if isinstance(body.metadata, dict) else None
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.priority, chat.cache_salt = body.priority, body.cache_salt
    return chat


def prompt_of(body: CountBody) -> ChatBody:
    """A chat with the same prompt. Raises `ApiError` and `InvalidRequest`."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": _texts(body.system, "system")})
    for number, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{number}]")
    chat = ChatBody(messages=messages, model=body.model, chat_template_kwargs=body.chat_template_kwargs)
    chat.tools = None if body.tools is None else [_tool(number, tool) for number, tool in enumerate(body.tools)]
    _choose(chat, body.tool_choice)
    if messages and messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str) and messages[-1]["content"]:
        chat.add_generation_prompt, chat.continue_final_message = False, True  # the answer's beginning was given
    return chat


def _messages(message: AnthropicMessage, field: str) -> list[Message]:
    """As chat templates know them: results of tools are messages of their own."""
    if message.role not in ("user", "assistant"):
        raise InvalidRequest(f"{field}.role", message.role, "use user or assistant")
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[Message] = []
    texts: list[str] = []
    own: Message = {"role": message.role, "content": None}
    for number, block in enumerate(message.content):
        at = f"{field}.content[{number}]"
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)} if message.role == "assistant":
                own["reasoning_content"] = own.get("reasoning_content", "") + text
            case {"type": "redacted_thinking"} if message.role == "assistant":
                continue
            case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(given)} if message.role == "assistant":
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
                own["tool_calls"] = [*own.get("tool_calls", ()), call]
            case {"type": "tool_result", "tool_use_id": str(call_id)} if message.role == "user":
                content = _texts(block.get("content") or "", at)
                results.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case _:
                kinds = "text, tool_result" if message.role == "user" else "text, thinking, tool_use"
                raise InvalidRequest(at, block.get("type"), f"this model takes text only; complete blocks of {kinds} can stand here")
    if texts or not (results or own.get("tool_calls")):
        own["content"] = "\n".join(texts)
    return [*results, own] if own["content"] is not None or own.get("tool_calls") else results


def _texts(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(field, content, "a text or a list of blocks of text is needed")
    for number, block in enumerate(content):
        if not (isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)):
            raise InvalidRequest(f"{field}[{number}]", block, 'this model takes text only: {"type": "text", "text": ...}')
    return "\n".join(block["text"] for block in content)


def _tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise InvalidRequest(f"tools[{number}].type", tool["type"], 'only "custom" is supported; this server runs no tools itself')
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _choose(chat: ChatBody, choice: Mapping[str, Any] | None) -> None:
    match choice:
        case None:
            return
        case {"type": "auto" | "none" as kind}:
            chat.tool_choice = kind
        case {"type": "any"}:
            chat.tool_choice = "required"
        case {"type": "tool", "name": str(name)}:
            chat.tool_choice = {"type": "function", "function": {"name": name}}
        case _:
            raise ApiError(400, '`tool_choice` is {"type": "auto"}, "any", "none" or "tool" with a `name`.', param="tool_choice")
    if choice.get("disable_parallel_tool_use"):
        chat.parallel_tool_calls = False
