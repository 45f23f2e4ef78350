"""`octavo chat`: talk to a model, loaded here or behind a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from octavo.cli.flags import Settings
from octavo.cli.sampling import SamplingOptions
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import Flag

DEFAULT_MAX_TOKENS = 1024
HELP = "Type a message; /reset starts anew, /exit or Ctrl-D ends."
Message = dict[str, str]


@dataclass(frozen=True)
class ChatOptions:
    """With whom, and how the conversation starts."""

    url: Annotated[str | None, Flag("address of a running server, such as http://127.0.0.1:8000; without it the model is loaded here")] = (
        None
    )
    api_key: Annotated[str | None, Flag("key that the server asks for", secret=True)] = None
    system: Annotated[str | None, Flag("what the model is told before the conversation")] = None
    prompt: Annotated[tuple[str, ...], Flag("messages to send one after the other, instead of asking for them", short=("-p",))] = ()


OPTIONS = ChatOptions
TOPICS = (SamplingOptions, *ENGINE_TOPICS)


class Partner(Protocol):
    """Who answers."""

    def answer(self, messages: list[Message]) -> Iterator[str]:
        """The answer to the last message, piece by piece."""
        ...


def run(settings: Settings) -> int:
    options: ChatOptions = settings.topic(ChatOptions)
    partner = _partner(options, settings)
    messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    opening = list(messages)
    for text in _turns(options):
        if text == "/exit":
            break
        if text == "/reset":
            messages = list(opening)
            continue
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _say(partner, messages)})
    return 0


def _partner(options: ChatOptions, settings: Settings) -> Partner:
    sampling: SamplingOptions = settings.topic(SamplingOptions)
    if options.url is not None:
        from octavo.cli.remote_chat import RemotePartner

        return RemotePartner(options.url, options.api_key, settings.values.get("model"), sampling)
    settings.engine()
    return LocalPartner(settings.engine_flags(), sampling)


class LocalPartner:
    """A model in this process."""

    def __init__(self, flags: dict[str, Any], sampling: SamplingOptions) -> None:
        from octavo.llm import LLM

        self._llm = LLM(**flags)
        self._params = sampling.params(self._llm.get_default_sampling_params(), DEFAULT_MAX_TOKENS)

    def answer(self, messages: list[Message]) -> Iterator[str]:
        return self._llm.chat_stream(messages, self._params)


def _turns(options: ChatOptions) -> Iterator[str]:
    """What the user says, line by line."""
    if options.prompt:
        yield from options.prompt
        return
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    print(HELP, file=sys.stderr)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return
        if text:
            yield text


def _say(partner: Partner, messages: list[Message]) -> str:
    pieces: list[str] = []
    for piece in partner.answer(messages):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    return "".join(pieces)
