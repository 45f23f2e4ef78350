"""One request of OpenAI's API, streamed: what came when, and whether it was an answer at all.

An answer counts only if it is one: an error event inside a stream of status 200, a finish reason that says error or abort, a stream that
ends without an end, a status other than 200 and a broken connection are failures.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.bench.serving.http import Clock, Pool

KEPT_BYTES = 2048  # of a body that is no stream, for its error
BAD_ENDS = ("error", "abort")


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are the client's clock."""

    due_s: float  # when it should have been sent
    sent_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    times_s: list[float] = field(default_factory=list[float])  # of the pieces of text
    num_prompt: int = 0
    num_output: int = 0
    num_cached: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Mean time a token after the first; 0 for one token."""
        return (self.times_s[-1] - self.times_s[0]) / (self.num_output - 1) if self.num_output > 1 else 0.0

    @property
    def e2e_s(self) -> float:
        return self.times_s[-1] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.times_s, self.times_s[1:])]


@dataclass(frozen=True)
class Ask:
    """What a request wants: a prompt as token ids or as text, and so many tokens."""

    prompt: list[int] | str
    output_len: int


@dataclass(frozen=True)
class Route:
    """Where requests go, and what all of them say."""

    endpoint: str
    model: str | None
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])  # such as temperature and ignore_eos

    @property
    def chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    def body(self, ask: Ask) -> bytes:
        named = {} if self.model is None else {"model": self.model}
        limit = "max_completion_tokens" if self.chat else "max_tokens"
        said = {"messages": [{"role": "user", "content": ask.prompt}]} if self.chat else {"prompt": ask.prompt}
        always = {limit: ask.output_len, "stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode({**named, **said, **always, **self.fields})


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Event(msgspec.Struct):
    """The part of a chunk that is looked at."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


decode = msgspec.json.Decoder(Event).decode


class Answer:
    """Hears the answer to one request and writes it down."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""  # of a line
        self._whole = bytearray()  # of a body that is no stream
        self._finished = False

    def began(self, status: int) -> None:
        self._outcome.status = status

    def came(self, now_s: float, data: bytes) -> None:
        if self._outcome.status != 200:
            self._whole += data[: KEPT_BYTES - len(self._whole)]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._heard(now_s, line[5:].strip())
            elif line.startswith(b"{"):
                self._whole += line[:KEPT_BYTES]

    def close(self) -> None:
        """The whole body has come."""
        outcome = self._outcome
        if outcome.status != 200:
            self._fail(f"status {outcome.status}: {_message(bytes(self._whole))}")
        elif not self._finished:
            rest = bytes(self._whole) or self._rest
            self._fail("the stream ended without an end" if not rest else f"no stream: {_message(rest)}")
        elif not outcome.times_s and outcome.error is None:
            self._fail("the stream has no token")

    def _heard(self, now_s: float, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._finished = True
            return
        try:
            event = decode(payload)
        except msgspec.DecodeError as error:
            return self._fail(f"an event that cannot be read: {error}")
        if event.error is not None or event.object == "error":
            return self._fail(f"an error event: {_text(event.error if event.error is not None else event.message)}")
        for choice in event.choices or ():
            self._read(now_s, choice)
        if event.usage is not None:
            self._count(event.usage)

    def _read(self, now_s: float, choice: Choice) -> None:
        outcome = self._outcome
        ended = choice.finish_reason is not None
        if choice.says_something or (ended and not outcome.times_s):  # a text may be empty, and yet has been made
            outcome.times_s.append(now_s)
            outcome.num_output += 1  # until usage tells how many
        if ended:
            self._finished = True
            if choice.finish_reason in BAD_ENDS:
                self._fail(f"finish reason {choice.finish_reason}")

    def _count(self, usage: Usage) -> None:
        outcome = self._outcome
        outcome.num_prompt = usage.prompt_tokens
        outcome.num_output = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            outcome.num_cached = usage.prompt_tokens_details.cached_tokens or 0

    def _fail(self, error: str) -> None:
        if self._outcome.error is None:
            self._outcome.error = error[:300]


def _message(body: bytes) -> str:
    """Of OpenAI's errors and others."""
    try:
        return _text(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200] or "no body"


def _text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


async def ask(pool: Pool, route: Route, body: bytes, due_s: float, clock: Clock, timeout_s: float) -> Outcome:
    """Send one request and follow its answer to the end. Never raises for what a server does."""
    outcome = Outcome(due_s, sent_s=clock())
    answer = Answer(outcome)
    try:
        async with asyncio.timeout(timeout_s):
            await pool.request("POST", route.endpoint, body, answer)
        answer.close()
    except TimeoutError:
        outcome.error = f"no end within {timeout_s:g} s"
    except OSError as error:
        outcome.error = f"connection: {error.strerror or error}"
    outcome.ended_s = clock()
    return outcome
