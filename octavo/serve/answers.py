"""The path from requests to an answer, whole or streamed, that completions and chats share. A `Shape` makes the choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from octavo.async_llm import Teller
from octavo.serve import sse
from octavo.serve.errors import ApiError
from octavo.serve.front import Front, cache_advice
from octavo.serve.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.serve.schemas import Answer, OctavoFacts, PromptTokensDetails, SamplingBody, Usage
from octavo.serve.writer import Writer
from octavo.text.pooling import EngineFailed
from octavo.types import CompletionOutput, Logprob, Request, RequestOutput

LOWEST_LOGPROB = -9999.0  # JSON has no infinity
Growth = Content | Reasoning | CallArguments  # more text of one part
PromptPositions = list[dict[int, Logprob] | None]


class Shape(Protocol):
    """How one route's choices look. `place` is the prompt's place among the prompts, `index` the choice's number."""

    object: str
    chunk_object: str

    @property
    def by_text(self) -> bool:
        """Whether a token's text is all that a stream needs to know of it, where the engine tells nothing else: then `reader` is asked."""
        ...

    @property
    def plain(self) -> bool:
        """Whether all text is content, so that `reader` need not be asked either."""
        ...

    def reader(self, index: int) -> Callable[[str], Sequence[Part]]:
        """Who says what more of a choice's text is certain to be."""
        ...

    def delta(self, index: int, part: Part) -> msgspec.Struct:
        """What a stream says of a part."""
        ...

    def choice(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> msgspec.Struct: ...

    def opening(self, index: int) -> msgspec.Struct | None:
        """What a stream says of a choice before its text."""
        ...

    def news(self, index: int, place: int, output: RequestOutput, one: CompletionOutput) -> Iterable[str | msgspec.Struct]:
        """What a stream says of new tokens, as long as there is something to tell; a text is content."""
        ...


@dataclass
class Call:
    """One call of a client: its requests, and how it wants the answer."""

    front: Front
    shape: Shape
    body: SamplingBody
    id: str
    requests: Sequence[Request]
    prompts: Sequence[str | None]
    show_tokens: bool = True  # False: only the prompt's echo is wanted
    created: int = field(default_factory=lambda: int(time.time()))
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    cache_miss: str | None = None
    _seen: set[int] = field(default_factory=set[int])  # places that have given output
    _opened: set[int] = field(default_factory=set[int])  # choices of which a stream has said something
    _contents: dict[int, sse.TextTemplate] = field(default_factory=dict[int, sse.TextTemplate])  # by the choice

    async def whole(self) -> bytes:
        outputs: dict[int, RequestOutput] = {}

        def tell(place: int, output: RequestOutput) -> None:
            self._count(place, output)
            outputs[place] = output

        await self.front.tell([self.front.text_state(request, prompt) for request, prompt in zip(self.requests, self.prompts)], tell)
        choices = [
            self.shape.choice(self._index(place, one), place, outputs[place], one)
            for place in range(len(self.requests))
            for one in outputs[place].outputs
        ]
        first = outputs[0]
        answer = self._answer(self.shape.object, choices, usage=self._usage(), octavo=self._facts())
        answer.system_fingerprint = None
        if self.body.prompt_logprobs is not None and first.prompt_logprobs is not None and self.shape.object == "chat.completion":
            answer.prompt_logprobs = prompt_positions(first.prompt_logprobs)
        if self.body.return_token_ids and self.shape.object == "chat.completion":
            answer.prompt_token_ids = first.prompt_token_ids
        return sse.encode(answer)

    async def write_events(self, writer: Writer) -> None:
        write = writer.write
        options = self.body.stream_options
        running_usage = bool(options and options.continuous_usage_stats)
        with_usage = bool(options and options.include_usage) or self.front.config.enable_force_include_usage

        def tell(place: int, output: RequestOutput) -> None:
            self._count(place, output)
            for one in output.outputs:
                for chunk in self._chunks(place, output, one, running_usage):
                    write(chunk)

        plain, n = self.shape.plain, self.requests[0].params.n

        def tell_text(place: int, index: int) -> Teller:
            choice = place * n + index
            return self._contents_of(choice).teller(writer) if plain else PartsTeller(self, choice, writer)

        states = [self.front.text_state(request, prompt) for request, prompt in zip(self.requests, self.prompts)]
        by_text = self.shape.by_text and not running_usage
        await self.front.tell(states, tell, tell_text if by_text else None)
        if by_text:
            self.num_output_tokens = sum(state.num_output_tokens for state in states)  # nobody has counted as they came
        if with_usage:
            write(sse.event(self._answer(self.shape.chunk_object, [], usage=self._usage(), octavo=self._facts())))
        write(sse.DONE)

    def failure(self, error: ApiError) -> bytes:
        return sse.event(error.reply) + sse.DONE

    def _chunks(self, place: int, output: RequestOutput, one: CompletionOutput, running_usage: bool) -> Iterator[bytes]:
        index = self._index(place, one)
        if index not in self._opened:
            self._opened.add(index)
            if (opening := self.shape.opening(index)) is not None:
                chunk = self._chunk(opening, running_usage)
                if self.body.return_token_ids:
                    chunk.prompt_token_ids = list(self.requests[place].prompt_token_ids)
                yield sse.event(chunk)
        for news in self.shape.news(index, place, output, one):
            if not isinstance(news, str):
                yield sse.event(self._chunk(news, running_usage))
            elif running_usage:
                yield sse.event(self._chunk(self.shape.delta(index, Content(news)), running_usage))
            else:
                yield self._contents_of(index).event(news)

    def _contents_of(self, index: int) -> sse.TextTemplate:
        """Of a choice's content."""
        template = self._contents.get(index)
        if template is None:
            template = self._contents[index] = self.template(index, Content(""))
        return template

    def template(self, index: int, part: Growth) -> sse.TextTemplate:
        """Of parts of the kind of `part`."""
        return sse.TextTemplate(lambda text: self.chunk_of(index, part._replace(text=text)))

    def chunk_of(self, index: int, part: Part) -> Answer:
        """What a stream says of a part."""
        return self._chunk(self.shape.delta(index, part))

    def _count(self, place: int, output: RequestOutput) -> None:
        for one in output.outputs:
            if one.finish_reason == "error":
                raise EngineFailed(str(one.stop_reason))
            self.num_output_tokens += len(one.token_ids) if self.show_tokens else 0
        if place not in self._seen:
            self._seen.add(place)
            self.num_cached_tokens += output.num_cached_tokens or 0
            self.cache_miss = self.cache_miss or output.cache_miss

    def _index(self, place: int, one: CompletionOutput) -> int:
        return place * self.requests[place].params.n + one.index

    def _chunk(self, choice: msgspec.Struct, running_usage: bool = False) -> Answer:
        return self._answer(self.shape.chunk_object, [choice], usage=self._usage() if running_usage else msgspec.UNSET)

    def _answer(self, kind: str, choices: list[Any], **more: Any) -> Answer:
        return Answer(id=self.id, object=kind, created=self.created, model=self.front.model.names[0], choices=choices, **more)

    def _usage(self) -> Usage:
        prompt = sum(len(request.prompt_token_ids) for request in self.requests)
        details = PromptTokensDetails(self.num_cached_tokens) if self.front.config.enable_prompt_tokens_details else msgspec.UNSET
        return Usage(prompt, self.num_output_tokens, prompt + self.num_output_tokens, details)

    def _facts(self) -> OctavoFacts:
        if not self.body.return_cache_miss:
            return OctavoFacts(self.num_cached_tokens)
        return OctavoFacts(self.num_cached_tokens, self.cache_miss, cache_advice(self.cache_miss) or msgspec.UNSET)


class PartsTeller:
    """Reads the text of a choice and writes an event of each part: of most of them only the text is new."""

    __slots__ = ("_call", "_index", "_parts_of", "_templates", "_writer")

    def __init__(self, call: Call, index: int, writer: Writer) -> None:
        self._call, self._index, self._writer = call, index, writer
        self._parts_of = call.shape.reader(index)
        self._templates: dict[type[Part] | int, sse.TextTemplate] = {}  # by the kind of part; a number: arguments of that call

    def tell(self, text: str) -> None:
        for part in self._parts_of(text):
            if isinstance(part, CallBegin):
                self._writer.write(sse.event(self._call.chunk_of(self._index, part)))
                continue
            kind = part.call if isinstance(part, CallArguments) else type(part)
            template = self._templates.get(kind)
            if template is None:
                template = self._templates[kind] = self._call.template(self._index, part)
            self._writer.write(template.event(part.text))


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def prompt_positions(positions: PromptPositions) -> list[Any]:
    """Log-probabilities of the prompt as vLLM writes them: by token id."""
    return [
        None
        if position is None
        else {
            str(token_id): {"logprob": finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
            for token_id, one in position.items()
        }
        for position in positions
    ]


def token_name(token_id: int, decoded: str | None, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else decoded or ""
