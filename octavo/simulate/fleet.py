"""Runs a load over one or many replicas, in order of time; the router that serves decides who gets what."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace

from octavo.config.resolved import Resolved
from octavo.core.budget import Seconds
from octavo.core.kv.layout import KVLayout
from octavo.core.router import Router
from octavo.simulate.load import Arrival, Load
from octavo.simulate.replica import Replica, Times
from octavo.simulate.result import Record, Served
from octavo.types import FinishReason, InvalidRequest, Request, SamplingParams, SequenceOutput

EXACT_REPLICAS = 64


@dataclass(slots=True)
class Live:
    """A request under way."""

    arrival: Arrival
    served: Served


class Fleet:
    """Replicas behind a router, and a load that is being served."""

    def __init__(self, load: Load, replicas: list[Replica], router: Router) -> None:
        self.replicas = replicas
        self.record = Record()
        self._load = load
        self._router = router
        self._first = load.first()
        self._later: list[tuple[float, int, Arrival]] = []  # a heap
        self._live: dict[str, Live] = {}
        self._params: dict[int, SamplingParams] = {}
        self._number = 0
        self._moved: set[int] = set()  # replicas that took a step since the router last heard of them

    def run(self) -> Record:
        """Until everything has been answered."""
        self._draw()
        busy: list[tuple[float, int]] = []  # a heap: the replica whose clock is furthest behind goes first
        while busy or self._later:
            at_s = self._later[0][0] if self._later else float("inf")
            if busy and busy[0][0] < at_s:
                number = busy[0][1]
                replica = self.replicas[number]
                self._moved.add(number)
                self._advance(replica, at_s if len(busy) == 1 else min(at_s, min(entry[0] for entry in busy[1:3])))
                if replica.busy:
                    heapreplace(busy, (replica.now_s, number))
                else:
                    heappop(busy)
            else:
                number = self._deliver(heappop(self._later)[2])
                if number is not None:
                    busy = [entry for entry in busy if entry[1] != number] + [(self.replicas[number].now_s, number)]
                    heapify(busy)
        self._close()
        return self.record

    def _draw(self) -> None:
        """The load's next first arrival joins those that follow from answers."""
        arrival = next(self._first, None)
        if arrival is not None:
            self._number += 1
            heappush(self._later, (arrival.at_s, self._number, arrival))

    def _deliver(self, arrival: Arrival) -> int | None:
        """Give the arrival to a replica; which one, or None if no replica can ever serve it."""
        if arrival.turn == 0:
            self._draw()
        for number in self._moved:
            self._router.report(number, self.replicas[number].load)
        self._moved.clear()
        number = self._router.choose(len(arrival.tokens), () if arrival.prefix is None else (arrival.prefix,))
        params = self._params.get(arrival.output_len)
        if params is None:
            params = self._params[arrival.output_len] = SamplingParams(max_tokens=arrival.output_len, ignore_eos=True, detokenize=False)
        self._number += 1
        request = Request(str(self._number), arrival.tokens, params, arrival.at_s, arrival.priority, tenant=arrival.tenant)
        try:
            self.replicas[number].receive(request, arrival.at_s)
        except InvalidRequest:
            self.record.num_refused += 1
            return None
        self._live[request.id] = Live(arrival, Served(arrival.at_s, len(arrival.tokens)))
        return number

    def _advance(self, replica: Replica, until_s: float) -> None:
        """Let a replica take a step, and more until its loop would look for news at `until_s` or an answer leads to a request."""
        usage, scheduler = self.record.usage, replica.scheduler
        cache, running, waiting = scheduler.cache, scheduler.running, scheduler.waiting
        pending = len(self._later)
        while True:
            began_s = replica.now_s
            news = replica.step()
            usage.add(replica.now_s - began_s, cache.usage, len(running), len(waiting))
            if news:
                self._hear(news, replica.now_s)
            if replica.now_s >= until_s or not replica.busy or len(self._later) != pending:
                return

    def _hear(self, news: Sequence[SequenceOutput], now_s: float) -> None:
        live, gap = self._live, self.record.gaps_s.append
        for said in news:
            one = live[said.request_id].served
            if one.num_output:
                gap(now_s - one.last_s)
            else:
                one.first_s = now_s
                one.queued_s = said.queued_s or 0.0
                one.num_cached = said.num_cached_tokens or 0
            one.last_s = now_s
            one.num_output += 1
            if said.finish_reason is not None:
                self._ended(said, now_s)

    def _ended(self, said: SequenceOutput, now_s: float) -> None:
        ended = self._live.pop(said.request_id)
        assert said.finish_reason is FinishReason.LENGTH, said
        self.record.served.append(ended.served)
        following = self._load.after(ended.arrival, now_s)
        if following is not None:
            self._number += 1
            heappush(self._later, (following.at_s, self._number, following))

    def _close(self) -> None:
        stats = [replica.scheduler.stats() for replica in self.replicas]
        busy_s = sum(replica.busy_s for replica in self.replicas)
        whole_s = max(replica.now_s for replica in self.replicas) * len(self.replicas)
        self.record.usage.seconds = whole_s
        self.record.counts = {
            "preemptions": sum(one["num_preemptions"] for one in stats),
            "steps": sum(replica.num_steps for replica in self.replicas),
            "device_busy": busy_s / whole_s if whole_s else 0.0,
        }


def simulate(
    load: Load,
    settings: Resolved,
    layout: KVLayout,
    times: Times,
    num_replicas: int = 1,
    affinity: int = 0,
    exact: int = EXACT_REPLICAS,
    foreseen: Seconds | None = None,
) -> tuple[Record, int]:
    """Serve a load with `num_replicas` replicas; above `exact` of them, its fair part with `exact`. Also gives how many were simulated.
    `foreseen`: what the engines take a step to last, where they know it less well."""
    simulated = min(num_replicas, exact)
    if simulated < num_replicas:
        load = load.part(simulated, num_replicas)

    def run(load: Load, settings: Resolved) -> Record:
        return Fleet(load, [Replica(settings, layout, times, foreseen) for _ in range(simulated)], Router(simulated, affinity)).run()

    if settings.enable_prefix_caching and not load.shares:
        # Nobody can find what another has computed. Then names of prefixes decide nothing and need not be made, which is a third of the
        # work, unless a preempted sequence finds its own blocks again.
        record = run(deepcopy(load), replace(settings, enable_prefix_caching=False))
        if not record.counts["preemptions"]:
            return record, simulated
    return run(load, settings), simulated
