"""What every route shares: the engine, the model it serves, and the one path on which requests run and are counted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from octavo.async_llm import Following, Teller, follow
from octavo.config.server import ServerConfig
from octavo.engine.client import AsyncEngine, EngineDead, EngineStats
from octavo.ledger import Ledger
from octavo.metrics import FrontMetrics
from octavo.serve.accounts import Account, Accounts
from octavo.serve.errors import ApiError, unknown_model
from octavo.serve.progress import Progress
from octavo.serve.queue import Queue
from octavo.serve.traces import traces_to
from octavo.serve.writer import Turn
from octavo.text.detokenize import Tokenizer
from octavo.text.intake import Intake
from octavo.text.output import RequestState
from octavo.text.pooling import EmbeddingSpace
from octavo.text.state import Growing, Output, State
from octavo.text.template import ChatTemplate
from octavo.types import FinishReason, Request, RequestOutput

log = logging.getLogger("octavo.serve")
T = TypeVar("T")
TellText = Callable[[int, int], Teller]  # by a request's place and a continuation of it
MAX_TENANT_CHARACTERS = 128
CACHE_ADVICE = {  # by the reason that a miss begins with
    "tokens": "put what changes from request to request after what stays the same",
    "short": "only whole blocks are shared: lengthen what stays the same, or serve with a smaller --block-size",
    "evicted": "a larger KV cache keeps prefixes longer",
}


@dataclass(frozen=True)
class ServedModel:
    """The model as clients see it. `names[0]` is the one in answers and metrics."""

    names: tuple[str, ...]
    tokenizer: Tokenizer
    intake: Intake
    space: EmbeddingSpace
    template: ChatTemplate | None = None
    bos_token: str | None = None
    root: str | None = None
    can_sleep: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


class Front:
    """Runs requests on the engine. Ids given to it are labels; the engine's are unique for the front's life."""

    def __init__(
        self,
        engine: AsyncEngine,
        model: ServedModel,
        config: ServerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        """`ledger` is where this process counts, and sees what the other API processes of the server count."""
        ledger = ledger or Ledger()
        self.engine = engine
        self.model = model
        self.config = config or ServerConfig()
        self.metrics = FrontMetrics(model.names[0], model.intake.max_model_len, self.config.metrics_namespace, ledger)
        self.clock = clock
        self.progress = Progress(self.config.stall_timeout)
        self.traces = traces_to(self.config.otlp_traces_endpoint, model.names[0])
        self.turn = Turn()
        self.draining = False
        self.running: dict[str, Following[Any]] = {}
        self.queue = Queue(self.config, clock, ledger=ledger)
        self.accounts = Accounts(self.config, clock, ledger)
        self.account = self.accounts.shared
        self.metrics.by_key = self.accounts.counts()
        self.generated = (self.metrics.counts,)  # where each token is counted
        self._serial = itertools.count(ledger.row, ledger.num_rows)  # other numbers than those of other processes

    def of(self, account: Account | None) -> Front:
        """The same front, as it serves who acts on this account."""
        if account is None:
            return self
        other = copy(self)
        other.account = account
        other.generated = (self.metrics.counts, account.counts)
        return other

    def check_model(self, name: str | None) -> None:
        if name and name not in self.model.names:
            raise unknown_model(name, "`, `".join(self.model.names))

    def check_room(self, requests: Sequence[Request] = ()) -> None:
        """Raise `ApiError` while no further request is taken."""
        self.check_room_for(len(requests), sum(len(request.prompt_token_ids) for request in requests))

    def check_room_for(self, num_requests: int, num_prompt_tokens: int) -> None:
        """The same for requests of which no more is known."""
        if self.engine.dead is not None:
            raise EngineDead(self.engine.dead)
        if self.draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down")
        if (stalled := self.progress.stalled) is not None:
            raise ApiError(503, f"Not ready: {stalled}.", code="engine_stalled")
        try:
            self.account.check(num_requests)
            self.queue.check(num_requests, num_prompt_tokens)
        except ApiError as refusal:
            self.metrics.refused.add(refusal.reply.error.code or "", num_requests)
            raise

    def heard(self, stats: EngineStats) -> None:
        """A reading of the engine, which is asked now and then."""
        self.progress.heard(stats)
        self.queue.estimate.heard(stats)

    def tenant(self, user: object) -> str | None:
        """Whose share of the engine a request takes that gives this as its user."""
        if self.account.name is not None and len(self.metrics.by_key) > 1:
            return self.account.name  # users are the client's to invent
        return user[:MAX_TENANT_CHARACTERS] if isinstance(user, str) else None

    def engine_id(self, label: str) -> str:
        return f"{label}-{next(self._serial)}"

    def run(self, request: Request, prompt: str | None = None) -> AsyncGenerator[RequestOutput]:
        """What the caller is to be told, step by step. Closing the iterator aborts the request. Raises `EngineDead`."""
        return self.follow(self.text_state(request, prompt))

    def text_state(self, request: Request, prompt: str | None = None) -> RequestState:
        return RequestState(request, prompt, self.model.tokenizer, self.clock, self.model.intake.stream_interval)

    def follow(self, state: State[Output]) -> AsyncGenerator[Output]:
        """The same for any request, as its state tells of it."""
        return follow(self.engine, state, Counting(self))

    async def tell(
        self, states: Sequence[State[T]], tell: Callable[[int, T], None], tell_text: TellText | None = None
    ) -> None:
        """Run several requests to their ends, by calls. `tell` gets each output with its request's place; who gets the text of one more
        token where that is all, `tell_text`, if given, says. One that fails ends all, and so does leaving early.

        Raises `EngineDead` and what `tell` raises.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        num_open = len(states)

        def ended(error: Exception | None) -> None:
            nonlocal num_open
            num_open -= 1
            if error is not None and not done.done():
                done.set_exception(error)
            elif num_open == 0 and not done.done():
                done.set_result(None)

        followings: list[Following[T]] = []
        try:
            for place, state in enumerate(states):
                short = None if tell_text is None else partial(tell_text, place)
                followings.append(Following(self.engine, state, Counting(self), partial(tell, place), ended, short))
                followings[-1].start()
            await done
        finally:
            for following in followings:
                following.leave()

    async def read_stats(self) -> None:
        """Bring the engine's gauges into the metrics; a dead engine's last reading stays."""
        with contextlib.suppress(EngineDead, asyncio.TimeoutError):
            self.metrics.engines = await asyncio.wait_for(self.engine.stats(), 5.0)


class Counting:
    """Keeps the front's counts of one request."""

    __slots__ = ("_begun", "_clock", "_front", "_gaps", "_generated", "_place", "_span", "_state")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._clock = front.clock
        self._generated, self._gaps = front.generated, front.metrics.inter_token_latency
        self._begun = False  # some token has come

    def started(self, following: Following[Any]) -> None:
        self._state: State[Any] = following.state
        front, request = self._front, following.state.request
        front.running[request.id] = following
        self._span = front.traces.started(request)
        self._place = front.queue.joined(len(request.prompt_token_ids))
        front.account.started(len(request.prompt_token_ids))
        front.metrics.started(request.params.n, request.params.max_tokens)
        if front.config.enable_log_requests:
            log.info("%s: %d prompt tokens, %s", request.id, len(request.prompt_token_ids), request.params)

    def progressed(self, growing: Growing, num_tokens: int) -> None:
        now_s = self._clock()
        for counts in self._generated:
            counts.add("generation_tokens", num_tokens)
        told_s, growing.told_s = growing.told_s, now_s
        if told_s is not None:
            self._gaps.observe(now_s - told_s)
        elif not self._begun:
            self._begun = True
            self._first_came(self._state)

    def _first_came(self, state: State[Any]) -> None:
        self._front.queue.left(self._place, read=True)
        self._tell_cache_miss(state)
        self._front.metrics.first_token(state.metrics, len(state.request.prompt_token_ids), state.num_cached_tokens or 0)

    def ended(self, state: State[Any], reason: FinishReason) -> None:
        front = self._front
        del front.running[state.request.id]
        front.account.ended()
        if not self._begun:
            answered = reason in (FinishReason.STOP, FinishReason.LENGTH)  # without a token: a vector
            front.queue.left(self._place, read=answered)
            if answered:
                front.metrics.prompt_read(len(state.request.prompt_token_ids), state.num_cached_tokens or 0)
        front.traces.ended(self._span, state, reason, front.clock() - state.metrics.arrival_time)
        front.metrics.ended(reason, state.metrics, front.clock(), len(state.request.prompt_token_ids), state.num_output_tokens)

    def _tell_cache_miss(self, state: State[Any]) -> None:
        if state.cache_miss is not None:
            level = logging.INFO if self._front.config.enable_log_requests else logging.DEBUG
            advice = cache_advice(state.cache_miss)
            log.log(level, "%s: prefix cache: %s%s", state.request.id, state.cache_miss, f"; {advice}" if advice else "")


def cache_advice(miss: str | None) -> str | None:
    """What would make the next such prompt hit the prefix cache."""
    return None if miss is None else CACHE_ADVICE.get(miss.partition(":")[0])


async def merged(streams: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """The outputs of several requests as they come, each with its request's place. One that fails ends all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for output in stream:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()

    async def pump(place: int, stream: AsyncGenerator[T]) -> None:
        async with aclosing(stream):
            async for output in stream:
                queue.put_nowait((place, output))

    async def pump_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, stream in enumerate(streams):
                    group.create_task(pump(place, stream))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(pump_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
