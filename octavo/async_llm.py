"""A model in a process of its own, asked from an event loop; and the one way in which requests are followed there, for the server too."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, Self

from octavo.config.engine import EngineConfig
from octavo.config.model import DEFAULT_MODEL
from octavo.engine.client import AsyncEngine, EngineDead
from octavo.models.checkpoint import Checkpoint
from octavo.text.intake import Intake
from octavo.text.output import RequestState
from octavo.text.state import Output, State
from octavo.types import FinishReason, RequestOutput, SamplingParams

BUILD = "octavo.engine.build:build_engine"
SEVERITY = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.LENGTH)  # a request's reason is its continuations' most severe one


class Observer(Protocol):
    """Is told what becomes of a request. Every one that has started ends once."""

    def started(self, state: State[Any]) -> None: ...

    def progressed(self, state: State[Any], num_tokens: int) -> None:
        """That many tokens are new."""
        ...

    def ended(self, state: State[Any], reason: FinishReason) -> None: ...


async def follow(engine: AsyncEngine, state: State[Output], observer: Observer) -> AsyncGenerator[Output]:
    """What the caller is to be told of a request, step by step. Closing the iterator aborts the request. Raises `EngineDead`."""
    request = state.request
    stream = engine.stream(request)
    reason = FinishReason.ABORT
    observer.started(state)
    try:
        async for news in stream:
            told = state.num_output_tokens
            output, stopped = state.feed(news)
            for index, num_tokens in stopped:
                engine.finish(request.id, index, FinishReason.STOP, num_tokens)
            if state.num_output_tokens > told:
                observer.progressed(state, state.num_output_tokens - told)
            if state.finished:
                reason = _reason(state)
            if output is not None:
                yield output
            if state.finished:
                return
        if (output := state.abort()) is not None:  # the engine was told to abort it
            yield output
    except EngineDead:
        reason = FinishReason.ERROR
        raise
    finally:
        close = getattr(stream, "aclose", None)  # engines write their streams as generators
        if close is not None:
            await close()
        observer.ended(state, reason)


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
    )


class Unobserved:
    """An observer that does not care."""

    def started(self, state: State[Any]) -> None:
        pass

    def progressed(self, state: State[Any], num_tokens: int) -> None:
        pass

    def ended(self, state: State[Any], reason: FinishReason) -> None:
        pass


class AsyncLLM:
    """A model ready to continue prompts concurrently. Made by `await AsyncLLM.start(model, **flags)`, with the flags of `octavo serve`."""

    def __init__(self, engine: AsyncEngine, intake: Intake) -> None:
        self.engine = engine
        self.intake = intake
        self._serial = itertools.count()
        self._running: dict[str, str] = {}  # the engine's id -> the caller's

    @classmethod
    async def start(cls, model: str = DEFAULT_MODEL, **flags: Any) -> Self:
        """Load the model in a process of its own. Raises `ConfigError`, `UnknownSetting` and `EngineDead`."""
        config = EngineConfig.from_flags(model=model, **flags)
        engine, checkpoint = await start_engine(config)
        return cls(engine, intake_of(config, checkpoint, dict(engine.info)))

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        request_id: str = "request",
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """The text as it grows, in the form that `sampling_params.output_kind` asks for. Leaving the loop early aborts the request.

        `request_id` is a label, for `abort`; it need not be unique. Raises `InvalidRequest` and `EngineDead`.
        """
        request = self.intake.request(
            f"{request_id}-{next(self._serial)}",
            prompt,
            sampling_params or self.intake.default_params(),
            arrival_s=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt,
        )
        state = RequestState(request, prompt if isinstance(prompt, str) else None, self.intake.tokenizer)
        self._running[request.id] = request_id
        try:
            async with aclosing(follow(self.engine, state, Unobserved())) as outputs:
                async for output in outputs:
                    output.request_id = request_id
                    yield output
        finally:
            del self._running[request.id]

    async def abort(self, request_id: str) -> None:
        """End the requests with this label; their streams end with the finish reason `abort`."""
        for engine_id in [engine_id for engine_id, label in self._running.items() if label == request_id]:
            self.engine.abort(engine_id)

    async def reset_prefix_cache(self) -> bool:
        return await self.engine.reset_prefix_cache()

    async def close(self, drain_s: float = 0.0) -> None:
        await self.engine.close(drain_s)


async def start_engine(config: EngineConfig) -> tuple[Any, Checkpoint]:
    """A `RemoteEngine` and the opened checkpoint: the engine loads in its process while the tokeniser is read here.

    Raises what either raises, `EngineDead` for the engine.
    """
    from octavo.engine.build import open_model
    from octavo.engine.remote import RemoteEngine

    engine = asyncio.create_task(RemoteEngine.start(BUILD, (config,)))
    try:
        checkpoint = await asyncio.to_thread(open_model, config)
        if not config.model.skip_tokenizer_init:
            await asyncio.to_thread(checkpoint.tokenizer)
        return await engine, checkpoint
    except BaseException:
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        raise
