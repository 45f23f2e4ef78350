"""A model in a process of its own, asked from an event loop; and the one way in which requests are followed there, for the server too."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from octavo.config.engine import EngineConfig
from octavo.config.model import DEFAULT_MODEL
from octavo.engine.client import AsyncEngine, EngineDead
from octavo.models.checkpoint import Checkpoint
from octavo.text.intake import Intake, Prompt, content_of
from octavo.text.output import RequestState
from octavo.text.state import Growing, State
from octavo.types import FinishReason, RequestOutput, SamplingParams, SequenceOutput

T = TypeVar("T")
BUILD = "octavo.engine.build:build_engine"
SEVERITY = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH)  # a request's reason is its continuations' most severe one


class Observer(Protocol):
    """Is told what becomes of a request. Every one that has started ends once."""

    def started(self, following: Following[Any]) -> None: ...

    def progressed(self, growing: Growing, num_tokens: int) -> None:
        """That many tokens of a continuation are new."""
        ...

    def ended(self, state: State[Any], reason: FinishReason) -> None: ...


class Teller(Protocol):
    """Tells a caller of more text of one continuation, maybe none."""

    def tell(self, text: str) -> None: ...


class Following(Generic[T]):
    """A request under way: the engine's news come in by calls, and so goes out what the caller is to be told.

    `tell` gets each output; then `ended` is called once, with what went wrong, if anything; an error that `tell` raises is such a thing.
    A caller that leaves before hears nothing more. One that gives `tell_text` is asked there for each continuation, who gets the news that
    is one token's text and nothing else: that is most of a stream, and need not be dressed as an output.
    """

    __slots__ = ("_ended", "_engine", "_observer", "_open", "_tell", "_tell_text", "state")

    def __init__(
        self,
        engine: AsyncEngine,
        state: State[T],
        observer: Observer,
        tell: Callable[[T], None],
        ended: Callable[[Exception | None], None],
        tell_text: Callable[[int], Teller] | None = None,
    ) -> None:
        self.state = state
        self._tell_text = tell_text
        self._engine = engine
        self._observer = observer
        self._tell = tell
        self._ended = ended
        self._open = False

    def start(self) -> None:
        """Raises `EngineDead`."""
        self._open = True
        self._observer.started(self)
        try:
            self._engine.add(self.state.request, self)
        except BaseException:
            self._close(FinishReason.ERROR)
            raise

    def take(self, news: SequenceOutput) -> None:
        try:
            self._take(news)
        except Exception as error:
            self.fail(error)

    def taker(self, index: int) -> Callable[[int], None]:
        growing = self.state.growing(index)
        if self._tell_text is None or growing is None or not growing.by_text:
            return partial(self.take_token, index)
        return TextTaker(self, growing, self._observer, self._tell_text(index)).take

    def take_token(self, index: int, token_id: int) -> None:
        self.take(SequenceOutput(self.state.request.id, index, (token_id,)))

    def fail(self, error: Exception) -> None:
        self.leave(FinishReason.ERROR)
        self._ended(error)

    def _take(self, news: SequenceOutput) -> None:
        state = self.state
        growing = state.growing(news.index)
        told = 0 if growing is None else growing.num_tokens
        output, stopped = state.feed((news,))
        for index, num_tokens in stopped:
            self._engine.finish(state.request.id, index, FinishReason.STOP, num_tokens)
        if growing is not None and growing.num_tokens > told:
            self._observer.progressed(growing, growing.num_tokens - told)
        if state.finished:
            self._close(_reason(state))
        if output is not None:
            self._tell(output)
        if state.finished:
            self._ended(None)

    def lost(self, reason: str) -> None:
        self._close(FinishReason.ERROR)
        self._ended(EngineDead(reason))

    def leave(self, reason: FinishReason = FinishReason.ABORT) -> None:
        """Nobody wants it any more. Does nothing when it has ended."""
        if self._open:
            self._engine.abort(self.state.request.id)
            self._close(reason)

    def abort(self) -> None:
        """End it and tell the caller so, by the finish reason `abort`."""
        if self._open:
            self.leave()
            output = self.state.abort()
            assert output is not None, "it was open"
            try:
                self._tell(output)
            except Exception as error:
                self._ended(error)
            else:
                self._ended(None)

    def _close(self, reason: FinishReason) -> None:
        self._open = False
        self._observer.ended(self.state, reason)


class TextTaker:
    """Takes the tokens of one continuation, of which its text is all that is told.

    Between two tokens of a stream come those of hundreds of others: what is reached from here is cold, so it is kept to few objects.
    """

    __slots__ = ("_following", "_growing", "_observer", "_teller")

    def __init__(self, following: Following[Any], growing: Growing, observer: Observer, teller: Teller) -> None:
        self._following = following
        self._growing = growing
        self._observer = observer
        self._teller = teller

    def take(self, token_id: int) -> None:
        growing = self._growing
        try:
            text = growing.short_text(token_id)
            if text is None:
                self._following.take_token(growing.index, token_id)
            else:
                self._observer.progressed(growing, 1)
                self._teller.tell(text)
        except Exception as error:
            self._following.fail(error)


class Told(Generic[T]):
    """Outputs that their reader has not taken yet."""

    def __init__(self) -> None:
        self._outputs: list[T] = []
        self._error: Exception | None = None
        self._over = False
        self._changed = asyncio.Event()

    def put(self, output: T) -> None:
        self._outputs.append(output)
        self._changed.set()

    def end(self, error: Exception | None) -> None:
        self._over, self._error = True, error
        self._changed.set()

    async def take(self) -> list[T]:
        """All outputs since the last call, as soon as there is one; none when there will be none. Raises what `end` was given."""
        if not self._outputs and not self._over:
            self._changed.clear()
            await self._changed.wait()
        outputs, self._outputs = self._outputs, []
        if not outputs and self._error is not None:
            raise self._error
        return outputs


async def follow(engine: AsyncEngine, state: State[T], observer: Observer) -> AsyncGenerator[T]:
    """What the caller is to be told of a request, as an iterator. Closing it aborts the request. Raises `EngineDead`."""
    told: Told[T] = Told()
    following = Following(engine, state, observer, told.put, told.end)
    following.start()
    try:
        while outputs := await told.take():
            for output in outputs:
                yield output
    finally:
        following.leave()


def _reason(state: State[Any]) -> FinishReason:
    return next((reason for reason in SEVERITY if reason in state.finish_reasons), FinishReason.STOP)


def intake_of(config: EngineConfig, checkpoint: Checkpoint, info: dict[str, Any]) -> Intake:
    """The door for requests to a started engine. `info` is what the engine said of itself when it was ready."""
    return Intake(
        tokenizer=None if config.model.skip_tokenizer_init else checkpoint.tokenizer(),
        max_model_len=info["max_model_len"],
        vocab_size=info["vocab_size"],
        eos_token_ids=checkpoint.eos_token_ids,
        generation_config=checkpoint.generation_config,
        max_logprobs=config.model.max_logprobs,
        stream_interval=config.scheduler.stream_interval,
    )


class Named:
    """Keeps requests under the caller's name for them while they run."""

    def __init__(self, name: str, running: dict[str, tuple[str, Following[Any]]]) -> None:
        self._name = name
        self._running = running  # by the engine's id

    def started(self, following: Following[Any]) -> None:
        self._running[following.state.request.id] = (self._name, following)

    def progressed(self, growing: Growing, num_tokens: int) -> None:
        pass

    def ended(self, state: State[Any], reason: FinishReason) -> None:
        del self._running[state.request.id]


class AsyncLLM:
    """A model ready to continue prompts concurrently. Made by `await AsyncLLM.start(model, **flags)`, with the flags of `octavo serve`."""

    def __init__(self, engine: AsyncEngine, intake: Intake) -> None:
        self.engine = engine
        self.intake = intake
        self._serial = itertools.count()
        self._running: dict[str, tuple[str, Following[Any]]] = {}

    @classmethod
    async def start(cls, model: str = DEFAULT_MODEL, **flags: Any) -> Self:
        """Load the model in a process of its own. Raises `ConfigError`, `UnknownSetting` and `EngineDead`."""
        config = EngineConfig.from_flags(model=model, **flags)
        engine, checkpoint = await start_engine(config)
        return cls(engine, intake_of(config, checkpoint, dict(engine.info)))

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str = "request",
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """The text as it grows, in the form that `sampling_params.output_kind` asks for. Leaving the loop early aborts the request.

        `request_id` is a label, for `abort`; it need not be unique. Raises `InvalidRequest` and `EngineDead`.
        """
        content, salt = content_of(prompt)
        request = self.intake.request(
            f"{request_id}-{next(self._serial)}",
            content,
            sampling_params or self.intake.default_params(),
            arrival_s=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt or salt,
        )
        shown, interval = content if isinstance(content, str) else None, self.intake.stream_interval
        state = RequestState(request, shown, self.intake.tokenizer, stream_interval=interval)
        async with aclosing(follow(self.engine, state, Named(request_id, self._running))) as outputs:
            async for output in outputs:
                output.request_id = request_id
                yield output

    async def abort(self, request_id: str) -> None:
        """End the requests with this label; their streams end with the finish reason `abort`."""
        for following in [following for name, following in self._running.values() if name == request_id]:
            following.abort()

    async def reset_prefix_cache(self) -> bool:
        return await self.engine.reset_prefix_cache()

    async def close(self, drain_s: float = 0.0) -> None:
        await self.engine.close(drain_s)


async def start_replicas(config: EngineConfig) -> Any:
    """`StartedReplicas` of this host, and of others behind the same API. Raises `ConfigError`, `ExecutorDead` and `EngineDead`."""
    from octavo.cluster.coordinator import all_replicas
    from octavo.cluster.replica_hosts import BUILD_REPLICA, far_engines
    from octavo.engine.replicas import StartedReplicas
    from octavo.host.numa import engine_place

    parallel = config.parallel
    here, there, coordinator = all_replicas(parallel)
    far = await asyncio.to_thread(far_engines, parallel, there)
    places = [engine_place(parallel, replica.local * parallel.world_size) for replica in here]
    return await StartedReplicas.start(BUILD_REPLICA, [(config, False, one) for one in here], places, coordinator, far, here[0].rank)


async def started_engine(config: EngineConfig) -> Any:
    """A `RemoteEngine`, or `StartedReplicas`, when they are ready. Raises `EngineDead`, and what starting replicas raises."""
    from octavo.engine.remote import RemoteEngine
    from octavo.host.numa import engine_place

    if config.parallel.data_parallel_size > 1:
        return await start_replicas(config)
    return await RemoteEngine.start(BUILD, (config,), place=engine_place(config.parallel))


async def start_engine(config: EngineConfig, starting: Coroutine[Any, Any, Any] | None = None) -> tuple[Any, Checkpoint]:
    """The engine of `starting`, or of `started_engine`, and the opened checkpoint: the one loads while the other's tokeniser is read here.

    Raises what either raises, `EngineDead` for the engine.
    """
    from octavo.engine.build import open_model

    engine = asyncio.create_task(starting or started_engine(config))
    try:
        checkpoint = await asyncio.to_thread(open_model, config)
        if not config.model.skip_tokenizer_init:
            tokenizer = await asyncio.to_thread(checkpoint.tokenizer)
            await asyncio.to_thread(tokenizer.token_texts, skip_special_tokens=True)  # or the first request would wait for them
        return await engine, checkpoint
    except BaseException:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        raise
