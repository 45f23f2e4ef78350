"""Plays a load to a real engine in this process, with its arrivals at their times, and records what it felt like, as the simulator does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Add
from octavo.simulate.load import Arrival, Load
from octavo.simulate.result import Record, Served
from octavo.types import FinishReason, Request, SamplingParams, SequenceOutput

LOWEST_ID = 10  # ids below have a meaning in many models
ID_STEP, PLACE_STEP = 7919, 104_729  # primes: what a token is depends on who says it and where, so that prompts that begin alike still do


class OwnTime:
    """Seconds that this process worked, plus those that it was told to sleep: a clock for a machine that others use too. With threads
    of kernels it counts the seconds of all of them, so it suits one thread (OMP_NUM_THREADS=1)."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def __call__(self) -> float:
        return time.process_time() + self._slept_s

    def sleep(self, seconds: float) -> None:
        self._slept_s += seconds


class Inbox(Protocol):
    """Where the engine's news is taken from."""

    def take(self) -> list[SequenceOutput]: ...


@dataclass(slots=True)
class Live:
    """A request under way, and what its session has said so far."""

    arrival: Arrival
    served: Served
    said: list[int]


@dataclass
class Player:
    """Gives a load to an engine: each request at its time, or when its user has heard the last answer."""

    loop: EngineLoop
    inbox: Inbox
    load: Load
    vocab_size: int
    name: str = "replay"  # begins the requests' ids
    sleep: Callable[[float], None] | None = None  # by default as the engine's clock wants it
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        clock = self.loop.clock
        self._sleep = self.sleep or (clock.sleep if isinstance(clock, OwnTime) else time.sleep)
        self._first: Iterator[Arrival] = self.load.first()
        self._later: list[tuple[float, int, Arrival]] = []  # a heap
        self._live: dict[str, Live] = {}
        self._said: dict[int, list[int]] = {}  # by session, what its next turn begins with
        self._number = 0

    def run(self) -> Record:
        """Until everything has been answered, beginning with an empty prefix cache."""
        loop, clock = self.loop, self.loop.clock
        loop.scheduler.reset_prefix_cache()
        usage, scheduler = self.record.usage, loop.scheduler
        before = loop.stats()
        self._draw()
        begin_s = last_s = clock()
        busy_s = 0.0
        while self._later or loop.busy:
            self._deliver(clock() - begin_s)
            if not loop.busy:
                at_s = self._later[0][0]
                self._sleep(max(0.0, at_s - (clock() - begin_s)))
                self._deliver(at_s)
                last_s = clock()
            loop.step()
            now_s = clock()
            usage.add(now_s - last_s, scheduler.cache.usage, len(scheduler.running), len(scheduler.waiting))
            busy_s += now_s - last_s
            last_s = now_s
            self._hear(self.inbox.take(), now_s - begin_s)
        usage.seconds = clock() - begin_s
        after = loop.stats()
        grown = {name: float(after[key]) - float(before[key]) for name, key in COUNTS.items()}  # pyright: ignore[reportArgumentType]
        self.record.counts = {**grown, "device_busy": busy_s / usage.seconds if usage.seconds else 0.0}
        return self.record

    def _draw(self) -> None:
        """The next of the first arrivals joins those that follow from answers."""
        arrival = next(self._first, None)
        if arrival is not None:
            self._put(arrival)

    def _put(self, arrival: Arrival) -> None:
        self._number += 1
        heappush(self._later, (arrival.at_s, self._number, arrival))

    def _deliver(self, now_s: float) -> None:
        """Everything whose time has come."""
        while self._later and self._later[0][0] <= now_s:
            arrival = heappop(self._later)[2]
            if arrival.turn == 0:
                self._draw()
            said = self._said.pop(arrival.session, [])
            prompt = said + self._ids(arrival.tokens, len(said))
            params = SamplingParams(max_tokens=arrival.output_len, temperature=0.0, ignore_eos=True, detokenize=False)
            self._number += 1
            name, told = f"{self.name}-{self._number}", {"priority": arrival.priority, "tenant": arrival.tenant}
            request = Request(name, tuple(prompt), params, self.loop.clock(), **told)
            self._live[request.id] = Live(arrival, Served(arrival.at_s, len(prompt)), prompt)
            self.loop.handle([Add(request)])

    def _ids(self, tokens: Sequence[int], first: int) -> list[int]:
        room = self.vocab_size - LOWEST_ID
        return [LOWEST_ID + (token * ID_STEP + place * PLACE_STEP) % room for place, token in enumerate(tokens[first:], first)]

    def _hear(self, news: Sequence[SequenceOutput], now_s: float) -> None:
        for said in news:
            live = self._live[said.request_id]
            if said.finish_reason is FinishReason.ERROR:
                del self._live[said.request_id]
                self.record.num_refused += 1
                continue
            one = live.served
            if one.num_output:
                self.record.gaps_s.append(now_s - one.last_s)
            else:
                one.first_s, one.queued_s, one.num_cached = now_s, said.queued_s or 0.0, said.num_cached_tokens or 0
            one.last_s = now_s
            one.num_output += len(said.token_ids)
            live.said.extend(said.token_ids)
            if said.finish_reason is not None:
                self._ended(said.request_id, now_s)

    def _ended(self, request_id: str, now_s: float) -> None:
        live = self._live.pop(request_id)
        self.record.served.append(live.served)
        following = self.load.after(live.arrival, now_s)
        if following is not None:
            if following.session == live.arrival.session:
                self._said[following.session] = live.said
            self._put(following)


COUNTS = {"preemptions": "num_preemptions", "steps": "num_steps"}  # of a record, and what the engine calls them
