"""What arrives when: drawn from rates and lengths, or read from a trace. Token ids are made up; they are equal where prompts begin alike.

A load gives its first arrivals in order of time, and is told when a request has ended, to which it may answer with another: the next turn
of a conversation, or the next request of a user who waits for each answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from octavo.types import InvalidRequest

Length = int | tuple[int, int]  # tokens, or the ends of a uniform range
RESERVED = 2  # ids below are never drawn


class Arrival(NamedTuple):
    """One request. The simulated model repeats the prompt's last token, so a conversation's next prompt can contain the answer."""

    at_s: float
    tokens: tuple[int, ...]
    output_len: int
    session: int = 0
    turn: int = 0
    prefix: object = None  # names a beginning that others share; for the router
    priority: int = 0
    tenant: str | None = None


class Load(Protocol):
    """Where arrivals come from. Good for one run."""

    @property
    def shares(self) -> bool:
        """Whether any two prompts can begin alike."""
        ...

    def first(self) -> Iterator[Arrival]:
        """In order of time."""
        ...

    def after(self, arrival: Arrival, ended_s: float) -> Arrival | None:
        """`arrival` has been answered: what follows from it, at `ended_s` or later."""
        ...

    def part(self, num_kept: int, num_all: int) -> Load:
        """A load that is to `num_kept` replicas what this one is to `num_all`."""
        ...


@dataclass(frozen=True)
class Kind:
    """Requests of one kind, and their share of all."""

    input_len: Length
    output_len: Length
    share: float = 1.0


@dataclass
class Synthetic:
    """Sessions that begin at random times. Each has `turns` requests; every one repeats the conversation so far and adds a new input.

    `rate` sessions a second with gaps of a gamma distribution (`burstiness` 1: Poisson; below 1: bursts), in `duration_s` seconds. Or
    `concurrency` users, of which each starts a new session when its last is over, until `num_sessions` were started.
    """

    kinds: tuple[Kind, ...] = (Kind(512, 128),)
    rate: float = 1.0
    duration_s: float = 60.0
    burstiness: float = 1.0
    concurrency: int = 0  # 0: open loop, nobody waits for an answer
    num_sessions: int = 1000  # of a closed loop
    turns: int = 1
    think_s: float = 0.0  # between an answer and the next turn
    shared_len: int = 0  # tokens at the beginning that all sessions share with some others ...
    num_shared: int = 1  # ... which have one of so many beginnings
    seed: int = 1

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._started = 0

    @property
    def shares(self) -> bool:
        return self.turns > 1 or self.shared_len > 0

    def first(self) -> Iterator[Arrival]:
        if self.concurrency:
            yield from (self._session(0.0) for _ in range(min(self.concurrency, self.num_sessions)))
            return
        at_s = 0.0
        while True:
            at_s += self._random.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
            if at_s >= self.duration_s:
                return
            yield self._session(at_s)

    def after(self, arrival: Arrival, ended_s: float) -> Arrival | None:
        if arrival.turn + 1 < self.turns:
            source = random.Random(f"{self.seed} {arrival.session} {arrival.turn}")  # whatever came between
            added, output_len = self._draw(source)
            own = arrival.tokens[-1]
            tokens = arrival.tokens + (own,) * (arrival.output_len + added)
            return arrival._replace(at_s=ended_s + self.think_s, tokens=tokens, output_len=output_len, turn=arrival.turn + 1)
        if self.concurrency and self._started < self.num_sessions:
            return self._session(ended_s)
        return None

    def part(self, num_kept: int, num_all: int) -> Load:
        if not self.concurrency:
            return Thinned(self, num_kept, num_all, self.seed)
        share = num_kept / num_all
        return replace(self, concurrency=max(1, round(self.concurrency * share)), num_sessions=max(1, round(self.num_sessions * share)))

    def _session(self, at_s: float) -> Arrival:
        number, self._started = self._started, self._started + 1
        input_len, output_len = self._draw(self._random)
        shared, own = RESERVED + number % self.num_shared, RESERVED + self.num_shared + number
        tokens = (shared,) * self.shared_len + (own,) * input_len
        return Arrival(at_s, tokens, output_len, number, 0, shared if self.shared_len else own if self.turns > 1 else None)

    def _draw(self, source: random.Random) -> tuple[int, int]:
        kind, *others = self.kinds
        if others:
            (kind,) = source.choices(self.kinds, [kind.share for kind in self.kinds])
        return pick(source, kind.input_len), pick(source, kind.output_len)


def pick(source: random.Random, length: Length) -> int:
    return length if isinstance(length, int) else source.randint(*length)


@dataclass(frozen=True)
class Trace:
    """Arrivals as recorded; the first comes at time 0."""

    arrivals: tuple[Arrival, ...]

    @property
    def shares(self) -> bool:
        return len({arrival.tokens[:1] for arrival in self.arrivals}) < len(self.arrivals)

    def first(self) -> Iterator[Arrival]:
        ordered = sorted(self.arrivals, key=lambda arrival: arrival.at_s)
        return (arrival._replace(at_s=arrival.at_s - ordered[0].at_s) for arrival in ordered)

    def after(self, arrival: Arrival, ended_s: float) -> Arrival | None:
        return None

    def part(self, num_kept: int, num_all: int) -> Load:
        return Thinned(self, num_kept, num_all)

    @staticmethod
    def read(path: Path) -> Trace:
        """JSON lines: `arrival_s`, `prompt_tokens` (or `prompt_token_ids`), `output_tokens`; `session` says which prompts continue
        each other, `prefix` which share their first `prefix_tokens` tokens; also `priority` and `tenant`. Raises `InvalidRequest`
        with the number of a bad line.
        """
        ids: dict[object, int] = {}
        found: list[Arrival] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    found.append(_arrival(json.loads(line), number, ids))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    needed = f"arrival_s, prompt_tokens and output_tokens are needed ({error!r})"
                    raise InvalidRequest("trace", f"line {number}", needed) from None
        if not found:
            raise InvalidRequest("trace", str(path), "the file has no line")
        return Trace(tuple(found))


def _arrival(entry: Mapping[str, Any], number: int, ids: dict[object, int]) -> Arrival:
    """One line. Prompts are made of one token each, but for a shared beginning: that of the session, or of the line."""

    def token(name: object) -> int:
        return ids.setdefault(name, RESERVED + len(ids))

    own = token(("session", entry["session"]) if entry.get("session") is not None else ("line", number))
    prefix = entry.get("prefix")
    shared = int(entry["prefix_tokens"]) if prefix is not None else 0
    tokens: Iterable[int] | None = entry.get("prompt_token_ids")
    if tokens is None:
        length = int(entry["prompt_tokens"])
        if not 0 <= shared <= length or length < 1:
            raise ValueError(f"prompt_tokens = {length}, prefix_tokens = {shared}")
        tokens = (token(("prefix", prefix)),) * shared + (own,) * (length - shared) if shared else (own,) * length
    at_s, output_len = float(entry["arrival_s"]), int(entry["output_tokens"])
    if at_s < 0 or output_len < 1:
        raise ValueError(f"arrival_s = {at_s}, output_tokens = {output_len}")
    name = ("prefix", prefix) if prefix is not None else ("session", entry["session"]) if entry.get("session") is not None else None
    tenant = entry.get("tenant")
    told = (int(entry.get("priority", 0)), None if tenant is None else str(tenant))
    return Arrival(at_s, tuple(map(int, tokens)), output_len, own, 0, name, *told)


@dataclass
class Thinned:
    """Of a load's sessions, in order of arrival, one drawn from each stretch of `num_all / num_kept`.

    So the part keeps the whole's course over time, and fluctuates as little as the whole does, which a router spreads over all replicas.
    """

    load: Load
    num_kept: int
    num_all: int
    seed: int = 1

    @property
    def shares(self) -> bool:
        return self.load.shares

    def first(self) -> Iterator[Arrival]:
        source = random.Random(self.seed)
        stretch = self.num_all / self.num_kept
        seen: dict[int, bool] = {}
        begin, chosen = 0.0, int(source.uniform(0, stretch))
        for arrival in self.load.first():
            number = len(seen)
            if arrival.session not in seen:
                seen[arrival.session] = number == chosen
                while chosen <= number:
                    begin += stretch
                    chosen = int(source.uniform(begin, begin + stretch))
            if seen[arrival.session]:
                yield arrival

    def after(self, arrival: Arrival, ended_s: float) -> Arrival | None:
        return self.load.after(arrival, ended_s)

    def part(self, num_kept: int, num_all: int) -> Load:
        return Thinned(self, num_kept, num_all, self.seed + 1)
