"""Chat templates: from messages to the prompt's text, as Hugging Face models define it (Jinja in a sandbox)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.config.fields import ConfigError
from octavo.types import InvalidRequest

Message = Mapping[str, Any]
TEXT_PARTS = ("text", "input_text", "output_text")
# Marks where the final message's text ends, to cut there when it is to be continued: private-use characters, which no filter trims.
MARK = "\U0010fffd\U0010fffc"


class ChatTemplate:
    """A compiled template. Raises `InvalidRequest` for a source that cannot be compiled and for messages that cannot be rendered.

    `content_format` says what it gets as content: one text ("string"), a list of parts ("openai"), or what its source shows that it knows.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        content_format: Literal["auto", "string", "openai"] = "auto",
    ) -> None:
        self.source = source
        self._content_format = content_format
        self.special_tokens = dict(special_tokens or {})
        try:
            self._tree = ENVIRONMENT.parse(source)
            self._compiled = ENVIRONMENT.from_string(self._tree)  # pyright: ignore[reportArgumentType]
        except TemplateError as error:
            raise InvalidRequest("chat_template", source, f"it is no valid Jinja template: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `continue_final_message` leaves the last message open, so that the model goes on with it."""
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest("continue_final_message", True, "it needs add_generation_prompt = false")
        prepared = [self._prepare(index, message) for index, message in enumerate(messages)]
        if not prepared:
            raise InvalidRequest("messages", [], "at least one message is needed")
        if continue_final_message:
            prepared[-1] = _marked(prepared[-1])
        given = {**self.special_tokens, **(variables or {})}
        given |= {"messages": prepared, "tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._compiled.render(given)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InvalidRequest("messages", f"{len(messages)} messages", f"the chat template refuses them: {error}") from error
        return _open_end(text) if continue_final_message else text

    def _prepare(self, index: int, message: Message) -> dict[str, Any]:
        field = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(field, message, "an object with a role is needed")
        prepared = dict(message)
        calls = prepared.pop("tool_calls", None)
        if calls:
            if not isinstance(calls, Sequence) or isinstance(calls, str):
                raise InvalidRequest(f"{field}.tool_calls", calls, "a list of calls is needed")
            prepared["tool_calls"] = [_parsed_call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)]
        content = message.get("content")
        if content is None:
            # A template may tell a call of tools from a text by the missing content.
            prepared["content"] = None if prepared.get("tool_calls") else ""
        elif isinstance(content, str):
            prepared["content"] = content if self._knows_strings else [{"type": "text", "text": content}]
        elif isinstance(content, Sequence):
            parts = [_text_part(part, f"{field}.content[{i}]") for i, part in enumerate(content)]
            prepared["content"] = parts if self._knows_parts else "\n".join(part["text"] for part in parts)
        else:
            raise InvalidRequest(f"{field}.content", content, "a text, a list of parts or null is needed")
        return prepared

    @cached_property
    def _knows_parts(self) -> bool:
        """Whether the template walks through a message's content part by part."""
        if self._content_format != "auto":
            return self._content_format == "openai"
        names = {"content"}  # as macros call their parameter
        for assignment in self._tree.find_all(nodes.Assign):
            if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
                names.add(assignment.target.name)
        return any(_is_content(loop.iter, names) for loop in self._tree.find_all(nodes.For))

    @cached_property
    def _knows_strings(self) -> bool:
        if self._content_format != "auto":
            return self._content_format == "string"
        return not self._knows_parts or any(test.name == "string" for test in self._tree.find_all(nodes.Test))


def template_source(given: str | None) -> str | None:
    """A template given as itself or as a file. Raises `ConfigError` where it is neither."""
    if given is None or "{" in given:
        return given
    if not Path(given).is_file():
        raise ConfigError("chat_template", given, "there is no such file, and a template in one line has {{ ... }} or {% ... %} in it")
    return Path(given).read_text("utf-8")


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _text_part(part: Any, field: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind in TEXT_PARTS else part.get("refusal") if kind == "refusal" else None
    if not isinstance(text, str):
        raise InvalidRequest(field, kind or part, 'this model takes text only: {"type": "text", "text": ...}')
    return {"type": "text", "text": text}


def _parsed_call(call: Any, field: str) -> dict[str, Any]:
    """The call with its arguments as an object: templates dump them themselves, and would escape a string once more."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequest(field, call, "an object with a function is needed")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field}.function.arguments", arguments, f"it is not valid JSON ({error})") from error
    return {**call, "function": {**function, "arguments": arguments if arguments is not None else {}}}


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + MARK}
    if content:
        return {**message, "content": [*content[:-1], {**content[-1], "text": content[-1]["text"] + MARK}]}
    raise InvalidRequest("continue_final_message", True, "the final message has no content to go on with")


def _open_end(text: str) -> str:
    end = text.rfind(MARK)
    if end < 0:
        raise InvalidRequest("continue_final_message", True, "this chat template does not show the final message's content as it is")
    return text[:end].replace(MARK, "")


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's tokens for training; here its body is all that counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


ENVIRONMENT = _environment()
