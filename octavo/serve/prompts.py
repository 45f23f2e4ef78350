"""From texts, token ids and messages to requests. Long texts and constraints are looked at in a thread: running streams do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from octavo.serve.constraints import asking_field
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.serve.schemas import ChatBody, SamplingBody
from octavo.text.template import ChatTemplate
from octavo.text.tokenizer import LONG_CHARACTERS
from octavo.types import InvalidRequest, Request, SamplingParams

MANY_MESSAGES = 64
MAX_PROMPTS = 2048


async def make_request(
    front: Front,
    prompt: str | Sequence[int],
    body: SamplingBody,
    params: SamplingParams,
    label: str,
    *,
    add_special_tokens: bool,
) -> Request:
    """Raises `InvalidRequest`."""

    def make() -> Request:
        return front.model.intake.request(
            front.engine_id(label),
            prompt,
            params,
            arrival_s=front.clock(),
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            tenant=front.tenant(body.user),
            add_special_tokens=add_special_tokens if body.add_special_tokens is None else body.add_special_tokens,
            must_have_room=body.max_tokens is not None or getattr(body, "max_completion_tokens", None) is not None,
        )

    if params.structured_outputs is not None or (isinstance(prompt, str) and len(prompt) > LONG_CHARACTERS):
        front.check_room_for(1, 1)  # who has to be refused anyway need not wait for it
        try:
            return await asyncio.to_thread(make)
        except InvalidRequest as error:
            if error.field.startswith("structured_outputs."):
                error.field = asking_field(body)
            raise
    await asyncio.sleep(0)  # of many prompts others' news come in between
    return make()


def prompt_list(prompt: Any, field: str) -> list[str | list[int]]:
    """The prompts of a call: a text, a list of texts, a list of token ids, or a list of such lists."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise ApiError(400, f"`{field}` must be a text, a list of texts, a list of token ids or a list of such lists.", param=field)
    if not isinstance(prompt[0], (str, list)):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise ApiError(400, f"`{field}` holds {len(prompt)} prompts; at most {MAX_PROMPTS} fit in one call.", param=field)
    if any(type(one) is not type(prompt[0]) for one in prompt):
        raise ApiError(400, f"`{field}` mixes texts and lists of token ids.", param=field)
    return prompt


async def chat_text(front: Front, body: ChatBody) -> tuple[str, bool]:
    """The prompt's text, and whether the tokeniser should add its special tokens: never a second one at the beginning.

    Raises `InvalidRequest` and `ApiError`.
    """
    return await asyncio.to_thread(_chat_text, front, body) if len(body.messages) > MANY_MESSAGES else _chat_text(front, body)


async def encoded(front: Front, text: str, add_special_tokens: bool) -> list[int]:
    """The tokens of a text that is no request."""
    encode = front.model.tokenizer.encode
    long = len(text) > LONG_CHARACTERS
    return await asyncio.to_thread(encode, text, add_special_tokens) if long else encode(text, add_special_tokens)


def _chat_text(front: Front, body: ChatBody) -> tuple[str, bool]:
    text = _template(front, body).render(
        body.messages,
        tools=_shown_tools(front, body),
        documents=body.documents,
        add_generation_prompt=True if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        variables={**front.config.default_chat_template_kwargs, **(body.chat_template_kwargs or {})},
    )
    has_bos = front.model.bos_token is not None and text.startswith(front.model.bos_token)
    return text, bool(body.add_special_tokens) and not has_bos


def _shown_tools(front: Front, body: ChatBody) -> list[Any] | None:
    hidden = front.config.exclude_tools_when_tool_choice_none and body.tool_choice == "none"
    return None if hidden else body.tools or None


def _template(front: Front, body: ChatBody) -> ChatTemplate:
    if body.chat_template is not None:
        if not front.config.trust_request_chat_template:
            message = "`chat_template` in a request needs the server's flag --trust-request-chat-template."
            raise ApiError(400, message, param="chat_template")
        own = front.model.template
        return ChatTemplate(body.chat_template, own.special_tokens if own else None, front.config.chat_template_content_format)
    if front.model.template is None:
        message = "This model has no chat template; start the server with --chat-template, or use /v1/completions."
        raise ApiError(400, message, param="messages")
    return front.model.template
