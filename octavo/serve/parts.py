"""The parts of an answer (reasoning, content, calls of tools), told while its text grows.

A format is a generator that reads the text as if all of it were there; where it is not, reading suspends the generator until more comes.
So what it tells cannot depend on how the text was split, which is the law of the text core. What turns out to be no call stays content:
no text is lost but white space around calls and reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]  # suspended while more text is needed
Say = Callable[[str], object]

BETWEEN_STRINGS = re.compile(r'[^"{}\[\]]*')
INSIDE_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # up to its end, or to a backslash that is the text's last character
SCALAR_END = re.compile(r"[\s,}\]]")
NAME_END = re.compile(r"[^\w.\-]")
SPACE_END = re.compile(r"\S")
ENDS_OUTSIDE, ENDS_INSIDE = frozenset('"{}[]'), frozenset('"\\')  # characters of JSON that matter outside strings and inside


class Reasoning(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class Content(NamedTuple):
    """More of what it says."""

    text: str


class CallBegin(NamedTuple):
    """A call of the tool `name`; `call` counts the calls of an answer from 0."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of the arguments of a call, as JSON text."""

    call: int
    text: str


Part = Reasoning | Content | CallBegin | CallArguments


class Flow(NamedTuple):
    """A place where text is told as it comes, all of which was told: more of it is told too, if it has none of `stops`, and, where white
    space at the end `waits`, none of that."""

    say: Say
    stops: frozenset[str] = frozenset()
    waits: bool = False


class Reader:
    """A growing text, the place up to which it was read, and what was told of it. Calls beyond `max_calls` are read, but not told."""

    def __init__(self, max_calls: int | None = None) -> None:
        self.parts: list[Part] = []  # told, and not taken by the caller yet
        self.ended = False
        self.num_calls = 0
        self._max_calls = max_calls
        self._text = ""
        self._at = 0
        self._starved = False  # more text was needed than there is
        self._flow: Flow | None = None  # where the reading generator is suspended, if it need not be woken for most text
        self._mark: tuple[int, int] | None = None  # if what was read since is refused, this span is content, and reading goes on after it

    def add(self, text: str) -> None:
        """The text goes on, and the generator is to be woken for it."""
        self._flow = None
        start = self._at if self._mark is None else self._mark[0]
        self._text = self._text[start:] + text
        self._at -= start
        if self._mark is not None:
            self._mark = (0, self._mark[1] - start)

    def flows(self, text: str) -> bool:
        """Tell more text as what it must be, if it lets go on what it goes on with; the generator that reads would tell the same."""
        flow = self._flow
        if flow is None or not flow.stops.isdisjoint(text) or (flow.waits and text[-1].isspace()):
            return False
        flow.say(text)
        return True

    # ---- telling

    def content(self, text: str) -> None:
        if text:
            self.parts.append(Content(text))

    def reasoning(self, text: str) -> None:
        if text:
            self.parts.append(Reasoning(text))

    def call(self, name: str) -> None:
        """What was read since the mark is a call for certain."""
        self._mark = None
        self.num_calls += 1
        if self._told:
            self.parts.append(CallBegin(self.num_calls - 1, name))

    def arguments(self, text: str) -> None:
        """More arguments of the last call."""
        if text and self._told:
            self.parts.append(CallArguments(self.num_calls - 1, text))

    @property
    def _told(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls

    # ---- what is not certain yet

    def mark(self) -> None:
        """What follows may be something else than it seems."""
        self._mark = (self._at, self._at)

    def accept(self) -> None:
        """It is what it seemed."""
        self._mark = None

    def refuse(self) -> None:
        """It is not: a marker before it is content, and what follows is read again. What the text's end has cut off is all content."""
        assert self._mark is not None, "nothing is open"
        start, after = self._mark
        self._at = len(self._text) if self._starved else after
        self._mark = None
        self.content(self._text[start : self._at])

    # ---- reading

    def _is_over(self) -> bool:
        """Whether no more text will come, now that it is needed; if not, `yield` waits for it (a generator that waits would cost each token
        a generator)."""
        self._starved = self.ended
        return self.ended

    def _let_flow(self, say: Say, stops: frozenset[str] = frozenset(), waits: bool = False) -> None:
        """The generator is suspended where most text will be told by `say`. Not where text is kept that may be refused, or held back."""
        if self._mark is None and self._at == len(self._text):
            self._flow = Flow(say, stops, waits)

    def rest(self, say: Say) -> Reading[None]:
        """All that is left."""
        while True:
            self._say_all(say)
            if self._is_over():
                return
            self._let_flow(say)
            yield

    def _say_all(self, say: Say) -> None:
        self._say_to(len(self._text), say)

    def _say_to(self, at: int, say: Say) -> None:
        if self._at < at:
            say(self._text[self._at : at])
            self._at = at

    def text_until(self, marker: str, say: Say) -> Reading[bool]:
        """The text before `marker`, without white space at its end; reads past the marker, which may still be refused. False: there is
        none, and all of the text was told."""
        while (found := self._text.find(marker, self._at)) < 0:
            if self.ended:
                yield from self.rest(say)
                return False
            sure = self._text[self._at : len(self._text) - overlap(self._text, marker, self._at)].rstrip()
            say(sure)
            self._at += len(sure)
            self._let_flow(say, frozenset(marker[0]), waits=True)
            yield
        sure = self._text[self._at : found].rstrip()
        say(sure)
        self._mark = (self._at + len(sure), found + len(marker))
        self._at = found + len(marker)
        return True

    def until(self, marker: str) -> Reading[str | None]:
        """The text before `marker`, which is read past; None: the text ends before it."""
        taken: list[str] = []
        while (found := self._text.find(marker, self._at)) < 0:
            sure = len(self._text) if self.ended else len(self._text) - overlap(self._text, marker, self._at)
            taken.append(self._text[self._at : sure])
            self._at = sure
            if self._is_over():
                return None
            yield
        taken.append(self._text[self._at : found])
        self._at = found + len(marker)
        return "".join(taken)

    def peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self._at == len(self._text):
            if self._is_over():
                return ""
            yield
        return self._text[self._at]

    def take(self, literal: str) -> Reading[bool]:
        """Reads past `literal` if it comes next."""
        while not self._text.startswith(literal, self._at):
            if not literal.startswith(self._text[self._at :]) or self._is_over():
                return False
            yield
        self._at += len(literal)
        return True

    def skip_space(self) -> Reading[None]:
        yield from self.run(SPACE_END, _nothing)

    def skip_last_space(self) -> Reading[None]:
        """White space, if nothing but that is left."""
        self.mark()
        yield from self.skip_space()
        if (yield from self.peek()):
            self.refuse()
        self.accept()

    def name(self) -> Reading[str]:
        """Letters, digits, underscores, dots and dashes, as names of functions have them. May be empty."""
        taken: list[str] = []
        yield from self.run(NAME_END, taken.append)
        return "".join(taken)

    def json_value(self, say: Say) -> Reading[bool]:
        """One JSON value as it is written, told while it comes. False: none begins here (nothing is read), or the text ends inside it.

        Only strings and brackets are followed; whether what they hold is valid is for the reader of the value.
        """
        first = yield from self.peek()
        if first and first in "-0123456789tfn":
            yield from self.run(SCALAR_END, say)
            return True
        if not first or first not in '"{[':
            return False
        depth, inside = 0, False  # brackets that are open; a string
        text, at = self._text, self._at  # read up to here, told up to `self._at`
        while True:
            found = (INSIDE_STRING if inside else BETWEEN_STRINGS).match(text, at)
            assert found is not None, "both match nothing too"
            at = found.end()
            if at == len(text) or text[at] == "\\":
                if self._is_over():
                    self._say_all(say)
                    return False
                self._say_to(at, say)
                self._let_flow(say, ENDS_INSIDE if inside else ENDS_OUTSIDE)
                yield
                text, at = self._text, self._at
                continue
            mark, at = text[at], at + 1
            if mark == '"':
                inside = not inside
            else:
                depth += 1 if mark in "{[" else -1
            if depth == 0 and not inside:
                self._say_to(at, say)
                return True

    def one(self, say: Say) -> None:
        """The next character, which `peek` has shown to be there."""
        say(self._text[self._at])
        self._at += 1

    def run(self, end: re.Pattern[str], say: Say) -> Reading[None]:
        """The text before the first `end`."""
        while (found := end.search(self._text, self._at)) is None:
            self._say_all(say)
            if self._is_over():
                return
            yield
        self._say_to(found.start(), say)


class AnswerReader:
    """Turns the text of one continuation into parts: reasoning first, then calls and content, each step by its format."""

    def __init__(self, steps: Iterable[Callable[[Reader], Reading[None]]] = (), max_calls: int | None = None) -> None:
        self._reader = Reader(max_calls)
        self._reading = _read(self._reader, steps)
        next(self._reading)

    @property
    def num_calls(self) -> int:
        """Calls found so far, told or not."""
        return self._reader.num_calls

    def push(self, text: str, *, last: bool = False) -> list[Part]:
        """What is certain now and was not before. `last`: no text will follow."""
        reader = self._reader
        if last or (text and not reader.flows(text)):
            reader.add(text)
            reader.ended = last
            next(self._reading, None)
        parts, reader.parts = reader.parts, []
        return parts if len(parts) < 2 else joined(parts)


def _read(reader: Reader, steps: Iterable[Callable[[Reader], Reading[None]]]) -> Reading[None]:
    yield
    for step in steps:
        yield from step(reader)
    yield from reader.rest(reader.content)


def joined(parts: list[Part]) -> list[Part]:
    """The same, with one part for neighbours of one kind."""
    texts: list[tuple[Part, list[str]]] = []
    for part in parts:
        if texts and not isinstance(part, CallBegin) and type(part) is type(texts[-1][0]):
            texts[-1][1].append(part.text)  # arguments of two calls have a beginning between them
        else:
            texts.append((part, [] if isinstance(part, CallBegin) else [part.text]))
    return [part if len(pieces) < 2 else part._replace(text="".join(pieces)) for part, pieces in texts]  # pyright: ignore


def overlap(text: str, marker: str, start: int = 0) -> int:
    """The length of the longest end of `text` from `start` on that could become `marker`."""
    at = text.find(marker[0], max(start, len(text) - len(marker) + 1))
    while at >= 0 and not marker.startswith(text[at:]):
        at = text.find(marker[0], at + 1)
    return 0 if at < 0 else len(text) - at


def _nothing(text: str) -> None:
    pass
