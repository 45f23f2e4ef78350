"""How the text of an answer is to be read, from what the caller offers and wants, and what the server knows of its model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from octavo.config.server import ServerConfig
from octavo.serve.errors import ApiError
from octavo.serve.parts import AnswerReader, CallArguments, CallBegin, Content, Part, Reader, Reading
from octavo.serve.reasoning.format import REASONING_FORMATS
from octavo.serve.reasoning.think_tags import ThinkTags
from octavo.serve.tools.forced import ListedCalls, NamedCall, list_schema
from octavo.serve.tools.format import TOOL_FORMATS, ToolFormat
from octavo.text.detokenize import Tokenizer
from octavo.types import InvalidRequest, SamplingParams, StructuredOutputs, Thinking

MAX_TOOLS = 128  # as OpenAI's API
CALL_ID = "call_{:.24}"
CALL_IDS = {"mistral": "{:.9}"}  # its chat templates accept nothing else


class Function(msgspec.Struct):
    """A tool's own description."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: Function


class _Tools(msgspec.Struct):
    tools: list[Tool]


@dataclass(frozen=True)
class ToolUse:
    """The tools that a caller offers, and what it wants of them."""

    tools: tuple[Tool, ...]
    choice: str = "auto"  # "none", "auto", "required", or the name of the one to be called
    named: bool = False  # whether `choice` is a name
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)

    @property
    def forced(self) -> bool:
        return self.named or self.choice == "required"


@dataclass(frozen=True)
class AnswerFormat:
    """The steps by which text becomes parts, for all continuations of a request."""

    reasoning: ThinkTags | None = None
    opened: bool = False  # the prompt has begun the reasoning already
    tools: ToolFormat | None = None
    use: ToolUse | None = None
    call_id_form: str = CALL_ID

    @property
    def plain(self) -> bool:
        """Whether all of the text is content."""
        return self.reasoning is None and self.tools is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must be seen, though they may be control tokens."""
        tags = () if self.reasoning is None else (self.reasoning.opening, self.reasoning.closing)
        return tags + (() if self.tools is None else self.tools.markers)

    def reader(self) -> AnswerReader:
        """A fresh one, for one continuation."""
        steps: list[Callable[[Reader], Reading[None]]] = []
        if self.reasoning is not None:
            steps.append(partial(self.reasoning.read, opened=self.opened))
        if self.tools is not None and self.use is not None:
            steps.append(partial(self.tools.read, known=self.use.names))
        return AnswerReader(steps, None if self.use is None or self.use.parallel else 1)

    def call_id(self, request_id: str, index: int, call: int) -> str:
        """The id of a call: the same whether it is streamed or not."""
        return self.call_id_form.format(hashlib.sha256(f"{request_id}/{index}/{call}".encode()).hexdigest())

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """OpenAI says "tool_calls" where the model has chosen to call, and "stop" where it was told which tool to call."""
        chosen = num_calls > 0 and self.use is not None and not self.use.named
        return "tool_calls" if reason == "stop" and chosen else reason


@dataclass
class Answered:
    """The parts of a whole answer, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # name, arguments

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Answered:
        whole = cls()
        for part in parts:
            match part:
                case CallBegin(_, name):
                    whole.calls.append((name, ""))
                case CallArguments(call, text):
                    name, arguments = whole.calls[call]
                    whole.calls[call] = (name, arguments + text)
                case Content(text):
                    whole.content += text
                case _:
                    whole.reasoning += part.text
        return whole


def answer_format(config: ServerConfig, use: ToolUse | None, prompt: str) -> AnswerFormat:
    """How an answer to this prompt is to be read. Raises `ApiError` where the model may call, and nobody said how it writes calls."""
    tags = REASONING_FORMATS[config.reasoning_parser] if config.reasoning_parser else None
    return AnswerFormat(
        reasoning=tags,
        opened=tags is not None and tags.opened_by(prompt),
        tools=_tool_format(config, use),
        use=use,
        call_id_form=CALL_IDS.get(config.tool_call_parser or "", CALL_ID),
    )


def _tool_format(config: ServerConfig, use: ToolUse | None) -> ToolFormat | None:
    if use is None or use.choice == "none":
        return None
    if use.named:
        return NamedCall(use.choice)
    if use.forced:
        return ListedCalls()
    if not config.enable_auto_tool_choice or config.tool_call_parser is None:
        message = '`tool_choice` "auto" needs the server\'s flags --enable-auto-tool-choice and --tool-call-parser.'
        raise ApiError(400, message, param="tool_choice")
    return TOOL_FORMATS.load(config.tool_call_parser)()


def adapted(params: SamplingParams, form: AnswerFormat, tokenizer: Tokenizer) -> SamplingParams:
    """The parameters with what the format needs: control tokens among its markers stay in the text, forced calls are constrained, and
    constraints begin behind the reasoning. Raises `InvalidRequest`."""
    if any(_is_special(tokenizer, marker) for marker in form.markers):
        params = replace(params, skip_special_tokens=False)
    constraint = params.structured_outputs
    if form.use is not None and form.use.forced:
        if constraint is not None:
            raise InvalidRequest("tool_choice", form.use.choice, "it cannot be forced together with another constraint on the text")
        constraint = StructuredOutputs(json=_forced_schema(form.use))
    if constraint is not None and form.reasoning is not None:
        constraint = replace(constraint, thinking=Thinking(form.reasoning.opening, form.reasoning.closing, form.opened))
    return params if constraint is params.structured_outputs else replace(params, structured_outputs=constraint)


def _forced_schema(use: ToolUse) -> dict[str, Any]:
    parameters = {tool.function.name: tool.function.parameters or {"type": "object"} for tool in use.tools}
    return parameters[use.choice] if use.named else list_schema(parameters, 1 if not use.parallel else None)


def _is_special(tokenizer: Tokenizer, marker: str) -> bool:
    ids = tokenizer.encode(marker, False)
    return len(ids) == 1 and ids[0] in tokenizer.special_ids


def tool_use(tools: Sequence[Any] | None, choice: Any, parallel: bool | None) -> ToolUse | None:
    """What a caller wants of its tools, in the form of chat completions; None where there are none.

    Raises `ApiError`, `InvalidRequest` and `msgspec.ValidationError`.
    """
    if not tools:
        if choice not in (None, "none", "auto") and not (choice == "required" and tools is not None):
            raise ApiError(400, "`tool_choice` needs `tools`.", param="tool_choice")
        return None
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("tools", f"{len(tools)} tools", f"at most {MAX_TOOLS}")
    checked = tuple(msgspec.convert({"tools": tools}, _Tools).tools)
    for number, tool in enumerate(checked):
        if tool.type != "function":
            raise InvalidRequest(f"tools[{number}].type", tool.type, 'only "function" is supported')
        if not tool.function.name:
            raise InvalidRequest(f"tools[{number}].function.name", "", "it must have at least one character")
    names = [tool.function.name for tool in checked]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools", names, "the names of tools must differ")
    wanted, named = _choice(choice, names)
    return ToolUse(checked, wanted, named, parallel is not False)


def _choice(choice: Any, names: Sequence[str]) -> tuple[str, bool]:
    if choice is None:
        return "auto", False
    if choice in ("none", "auto", "required"):
        return choice, False
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            if name not in names:
                raise InvalidRequest("tool_choice", name, f"it must be the name of one of the tools: {', '.join(names)}")
            return name, True
        case _:
            raise InvalidRequest("tool_choice", choice, 'use "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')
