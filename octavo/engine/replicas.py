"""Several engines that serve one model, each in its process, seen as one `AsyncEngine`: requests go where there is least to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from octavo.core.router import AFFINITY, Router, prefix_names
from octavo.engine.client import EngineDead, EngineStats, Reader
from octavo.engine.link import Door, EngineLink
from octavo.engine.process import ANYWHERE, FIRST_WORD_GRACE_S, Child, Process, Word
from octavo.engine.remote import RemoteEngine
from octavo.engine.sleep import BUSY
from octavo.host.place import Place
from octavo.types import FinishReason, Request

CAUSE_LOOKS = 6  # how often the one is waited for that the others only lost
LOAD_EVERY_S = 0.05  # how often replicas are asked for their load while requests run


class Replicas:
    """Routes by what the engines say of themselves, so several fronts may each do so."""

    def __init__(self, engines: Sequence[EngineLink], first: int = 0) -> None:
        """`first`: the first one's number."""
        self._engines = engines
        self.first = first
        self._router = Router(len(engines), AFFINITY)
        self._dead: str | None = None
        self._changed = asyncio.Event()
        self._asking = asyncio.create_task(self._ask_loads())

    @property
    def info(self) -> Mapping[str, Any]:
        """What the first says of itself, with the least that any can take."""
        infos = [engine.info for engine in self._engines]
        return {**infos[0], **{name: min(info[name] for info in infos) for name in ("max_model_len", "kv_tokens")}}

    @property
    def dead(self) -> str | None:
        return self._dead

    @property
    def doors(self) -> list[Door]:
        """Where other fronts find each."""
        return [door for engine in self._engines for door in engine.doors]

    def add(self, request: Request, reader: Reader) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)
        names = prefix_names(request.prompt_token_ids, self._engines[0].info["block_size"], request.cache_salt)
        self._engines[self._router.choose(len(request.prompt_token_ids), names)].add(request, reader)
        self._changed.set()

    def finish(self, request_id: str, index: int, reason: FinishReason, num_tokens: int) -> None:
        for engine in self._engines:
            if engine.follows(request_id):
                engine.finish(request_id, index, reason, num_tokens)

    def abort(self, request_id: str) -> None:
        for engine in self._engines:
            if engine.follows(request_id):
                engine.abort(request_id)

    async def stats(self) -> list[EngineStats]:
        return list(chain.from_iterable(await asyncio.gather(*(engine.stats() for engine in self._engines))))

    async def advice(self) -> list[dict[str, Any]]:
        """Of all engines, each with its number."""
        found = await asyncio.gather(*(engine.advice() for engine in self._engines))
        return [{**finding, "engine": number} for number, findings in enumerate(found, self.first) for finding in findings]

    async def reset_prefix_cache(self) -> bool:
        return all(await asyncio.gather(*(engine.reset_prefix_cache() for engine in self._engines)))

    async def order(self, name: str, *args: Any) -> list[str]:
        found = await asyncio.gather(*(engine.order(name, *args) for engine in self._engines))
        return [f"engine {number}: {complaint}" if complaint != BUSY else BUSY for number, own in enumerate(found) for complaint in own]

    def lose(self, reason: str) -> None:
        """All have ended, and this is what their requests are told."""
        self._dead = reason
        for engine in self._engines:
            engine.lose(reason)

    async def close(self, drain_s: float = 0.0) -> None:
        self._asking.cancel()
        await asyncio.gather(*(engine.close(drain_s) for engine in self._engines), self._asking, return_exceptions=True)
        self._dead = self._dead or "the engine was closed"

    async def _ask_loads(self) -> None:
        """Keep the router informed for as long as loads change. A word knows of what was sent before it was asked for."""
        with contextlib.suppress(EngineDead):
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.gather(*map(self._ask_load, range(len(self._engines))))
                await asyncio.sleep(LOAD_EVERY_S)

    async def _ask_load(self, number: int) -> None:
        known = self._router.num_sent(number)
        load = await self._engines[number].load()
        self._router.report(number, load, known)
        if load.num_running or load.num_waiting:
            self._changed.set()


class StartedReplicas(Replicas):
    """Starts its engines when made. One that ends ends all, and each request under way is told the first one's error."""

    def __init__(
        self, build: str, args: Sequence[tuple[Any, ...]], places: Sequence[Place] = (), keep: Child | None = None,
        far: Sequence[Process] = (), first: int = 0,
    ) -> None:  # fmt: skip
        """`places` says where each engine's process runs; none: anywhere. `keep`: a process that they need, ended with them. `far`: further
        engines, started on other hosts. `first`: the first one's number."""
        self._started = [RemoteEngine(build, one, place=place) for one, place in zip(args, places or [ANYWHERE] * len(args), strict=True)]
        self._started += [RemoteEngine(build, (), process=process) for process in far]
        super().__init__(self._started, first)
        self._keep = keep
        self._closing = False
        self._dying: asyncio.Task[None] | None = None
        for engine in self._started:
            engine.on_death = self._engine_died

    @classmethod
    async def start(
        cls, build: str, args: Sequence[tuple[Any, ...]], places: Sequence[Place] = (), keep: Child | None = None,
        far: Sequence[Process] = (), first: int = 0,
    ) -> StartedReplicas:  # fmt: skip
        """An engine for each of `args`. Raises `EngineDead` with the first error of any."""
        replicas = cls(build, args, places, keep, far, first)
        try:
            await asyncio.gather(*(engine.ready() for engine in replicas._started))
        except BaseException:
            await replicas.close()
            raise
        return replicas

    @property
    def pids(self) -> list[int]:
        return [engine.pid for engine in self._started]

    async def close(self, drain_s: float = 0.0) -> None:
        self._closing = True
        await super().close(drain_s)
        if self._dying is not None:
            await self._dying
        if self._keep is not None:
            await asyncio.to_thread(self._keep.kill)

    def _engine_died(self) -> None:
        """After a moment all others end too: whoever waited for the first one may have been quicker to say so."""
        if self._dying is None and not self._closing:
            self._dying = asyncio.create_task(self._end_all())

    async def _end_all(self) -> None:
        await asyncio.sleep(FIRST_WORD_GRACE_S)
        looks = 0
        while len(words := self._words()) < len(self._started) and min(words).consequence and (looks := looks + 1) < CAUSE_LOOKS:
            await asyncio.sleep(FIRST_WORD_GRACE_S)
        self.lose(min(words).text)
        await asyncio.gather(*(engine.close() for engine in self._started))

    def _words(self) -> list[Word]:
        """Of those that have ended."""
        engines = enumerate(self._started, self.first)
        return [engine.last_word.of(f"engine {number}") for number, engine in engines if engine.last_word is not None]


def connect(doors: Sequence[Door]) -> EngineLink | Replicas:
    """A further front's view of engines that run."""
    links = [EngineLink() for _ in doors]
    for link, door in zip(links, doors):
        link.connect(*door)
    return links[0] if len(links) == 1 else Replicas(links)
