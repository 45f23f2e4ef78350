"""The offline interface: `LLM(model).generate(prompts, sampling_params)`, with vLLM's names and return fields.

The engine runs inline, or as several replicas in processes of their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from octavo.cluster.coordinator import all_replicas
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.model import DEFAULT_MODEL
from octavo.engine.build import build_engine, open_model
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Abort, Add, Finish
from octavo.engine.offline import Collected, Offline, Replicas
from octavo.host.collector import seldom_collected
from octavo.logs import start_logging
from octavo.models.checkpoint import Checkpoint
from octavo.plan.timing import Timing
from octavo.progress import Progress
from octavo.text.intake import Intake, Prompt, content_of
from octavo.text.output import RequestState
from octavo.text.pooling import EmbeddingSpace, PoolingState, cosine
from octavo.text.state import State
from octavo.text.template import ChatTemplate, template_source
from octavo.text.tokenizer import Tokenizer
from octavo.types import (
    EmbeddingRequestOutput,
    FinishReason,
    InvalidRequest,
    OutputKind,
    Request,
    RequestOutput,
    SamplingParams,
    ScoringOutput,
    ScoringRequestOutput,
    SequenceOutput,
)

# Arguments of vLLM's calls that have no counterpart here: why, and what to do instead.
FOREIGN_ARGUMENTS = {
    "lora_request": "adapters are not loaded by this version; merge the adapter into the model's weights",
    "mm_processor_kwargs": "the models of this version read text only",
    "tokenization_kwargs": "there is one way of tokenising; truncate_prompt_tokens is a sampling parameter, or give token ids",
    "chat_template_content_format": "it is found in the template itself; use auto",
}
BUILD_REPLICA = "octavo.engine.build:build_replica"
Output = TypeVar("Output", RequestOutput, EmbeddingRequestOutput)


class LLM:
    """A model ready to continue prompts. `flags` are those of `octavo serve` with underscores (`max_model_len=4096`)."""

    def __init__(self, model: str = DEFAULT_MODEL, **flags: Any) -> None:
        start_logging()
        self.config = EngineConfig.from_flags(model=model, **flags)
        own_template = template_source(self.config.model.chat_template)
        self._outbox = Collected()
        self._engine, self.info = self._start()
        checkpoint = self._checkpoint
        self._tokenizer: Tokenizer | None = None if self.config.model.skip_tokenizer_init else checkpoint.tokenizer()
        self._template_source = own_template or (self._tokenizer.chat_template if self._tokenizer else None)
        self._intake = Intake(
            tokenizer=self._tokenizer,
            max_model_len=self.info["max_model_len"],
            vocab_size=self.info["vocab_size"],
            eos_token_ids=checkpoint.eos_token_ids,
            generation_config=checkpoint.generation_config,
            max_logprobs=self.config.model.max_logprobs,
        )
        self._space = EmbeddingSpace.of(
            self.info["hidden_size"], checkpoint.config, checkpoint.pooler, self.config.model.pooling_type
        )
        self._ids = itertools.count()
        self._asleep = False
        self._being_read = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Sequence[int] | None = None,
        **foreign: Any,
    ) -> list[RequestOutput]:
        """Continue each prompt: a text, a list of token ids, or {"prompt" | "prompt_token_ids": ..., "cache_salt": ...}.

        Outputs come in the order of the prompts. Raises `InvalidRequest` before anything runs if one of them cannot.
        """
        _refuse_foreign(foreign)
        listed = _as_list(prompts)
        # Nobody sees what lies between.
        final = (one.settled(output_kind=OutputKind.FINAL_ONLY) for one in self._params_for(listed, sampling_params))
        states = [self._state(*one) for one in zip(listed, final, _priorities(priority, len(listed)))]
        return self._run(states, bool(use_tqdm))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **foreign: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them."""
        _refuse_foreign(foreign)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        template = self._template(chat_template)
        texts = [
            template.render(
                conversation,  # pyright: ignore[reportArgumentType]
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate([self._encoded(text) for text in texts], sampling_params, use_tqdm, priority)

    def chat_stream(self, messages: Sequence[Mapping[str, Any]], sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """The answer to one conversation, piece by piece as it grows. Leaving the loop early aborts the request."""
        prompt = self._encoded(self._template(None).render(messages))
        params = (sampling_params or self.get_default_sampling_params()).settled(output_kind=OutputKind.DELTA)
        for output in self._outputs([self._state(prompt, params)]):
            yield from (one.text for one in output.outputs if one.text)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        use_tqdm: bool = True,
        *,
        truncate_prompt_tokens: int | None = None,
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt, from the model's last hidden state (`--pooling-type`); of length 1 unless `normalize` is false."""
        self._space.check(dimensions)
        params = self._space.params(truncate_prompt_tokens)
        states = [
            PoolingState(self._request(prompt, params), self._space, dimensions, normalize) for prompt in _as_list(prompts)
        ]
        outputs = self._run(states, use_tqdm)
        for output in outputs:
            output.outputs.embedding = list(output.outputs.embedding)
        return outputs

    def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str], use_tqdm: bool = True) -> list[ScoringRequestOutput]:
        """How alike texts are: the cosine of their vectors. One text against each of `text_2`, or as many pairs as there are texts."""
        left = [text_1] if isinstance(text_1, str) else list(text_1)
        right = [text_2] if isinstance(text_2, str) else list(text_2)
        if len(left) not in (1, len(right)):
            raise InvalidRequest("text_1", f"{len(left)} texts", f"give one, or as many as in text_2 ({len(right)})")
        outputs = self.embed([*left, *right], use_tqdm)
        vectors = [output.outputs.embedding for output in outputs]
        firsts = vectors[: len(left)] * (len(right) // len(left))
        return [
            ScoringRequestOutput(output.request_id, ScoringOutput(cosine(first, output.outputs.embedding)), output.prompt_token_ids)
            for first, output in zip(firsts, outputs[len(left) :], strict=True)
        ]

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back: KV cache, graphs, and the weights, which go to the host's memory (1) or are loaded anew when it
        wakes (2). On a CPU the weights stay where they are at level 1. Needs `enable_sleep_mode`. Raises `InvalidRequest`."""
        if level not in (1, 2):
            raise InvalidRequest("level", level, "use 1 (weights to the host) or 2 (weights dropped)")
        self._order("sleep", level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again: all of it, or first "weights" and later "kv_cache". Raises `InvalidRequest` where it does not fit."""
        self._order("wake", *(() if tags is None else (list(tags),)))

    def start_profile(self) -> None:
        """Begin to profile steps. Needs `profiler_config`. Raises `InvalidRequest`."""
        self._told(self._engine.ask("start_profile"))

    def stop_profile(self) -> None:
        """End it, and write a trace for each worker. Raises `InvalidRequest`."""
        self._told(self._engine.ask("stop_profile"))

    def _told(self, complaints: list[str]) -> None:
        if complaints:
            raise InvalidRequest("profiler_config", self.config.compilation.profiler_config, complaints[0])

    def _order(self, name: str, *args: Any) -> None:
        if not self.config.model.enable_sleep_mode:
            raise InvalidRequest("enable_sleep_mode", False, "start with enable_sleep_mode = True")
        if complaints := self._engine.ask(name, *args):
            raise InvalidRequest(name, args, complaints[0])
        self._asleep = self._engine.ask("stats")["sleep_level"] > 0

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequest("skip_tokenizer_init", True, "there is no tokeniser with it")
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json says, else neutral."""
        return self._intake.default_params()

    def get_metrics(self) -> dict[str, Any]:
        """The engine's gauges and counters."""
        return self._engine.ask("stats")

    def get_step_log(self) -> list[Timing]:
        """What the last steps were, and how long they took: what the cost model is fitted to."""
        return self._engine.ask("step_log")

    @property
    def inside(self) -> tuple[EngineLoop, Collected]:
        """The engine's loop and where its news is kept, for who times requests himself. Raises `ConfigError` where there are several."""
        if not isinstance(self._engine, EngineLoop):
            replicas = self.config.parallel.data_parallel_size
            raise ConfigError("data_parallel_size", replicas, "steps are looked at one by one here, which needs one engine; use 1")
        return self._engine, self._outbox

    def reset_prefix_cache(self) -> bool:
        return self._engine.ask("reset_prefix_cache")

    def close(self) -> None:
        self._engine.close()

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        """Opened once, for the engine here and for the front."""
        return open_model(self.config)

    def _start(self) -> tuple[Offline, dict[str, Any]]:
        if self.config.parallel.data_parallel_size == 1:
            return build_engine(self.config, self._outbox, offline=True, opening=lambda _: self._checkpoint)
        here, there, coordinator = all_replicas(self.config.parallel)
        if there:
            raise ConfigError("data_parallel_size_local", len(here), "LLM drives the replicas of its own host; use octavo serve")
        replicas = Replicas(BUILD_REPLICA, [(self.config, True, replica) for replica in here], self._outbox, coordinator)
        return replicas, replicas.info

    def _template(self, given: str | None) -> ChatTemplate:
        source = template_source(given) or self._template_source
        if source is None or self._tokenizer is None:
            raise InvalidRequest("chat_template", None, "the model has none of its own; give one")
        return ChatTemplate(source, self._tokenizer.special_tokens)

    def _params_for(
        self, prompts: Sequence[Prompt], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * len(prompts)
        if len(given) != len(prompts):
            raise InvalidRequest("sampling_params", f"{len(given)} of them", f"give one, or one for each of the {len(prompts)} prompts")
        return given

    def _encoded(self, text: str) -> list[int]:
        """A rendered conversation, which holds its special tokens already."""
        return self.get_tokenizer().encode(text, False)

    def _state(self, prompt: Prompt, params: SamplingParams, priority: int = 0) -> RequestState:
        content, _ = content_of(prompt)
        return RequestState(self._request(prompt, params, priority), content if isinstance(content, str) else None, self._tokenizer)

    def _request(self, prompt: Prompt, params: SamplingParams, priority: int = 0) -> Request:
        if self._asleep:
            raise InvalidRequest("prompt", prompt, "the model sleeps; call wake_up() first")
        content, salt = content_of(prompt)
        request = self._intake.request(
            str(next(self._ids)), content, params, arrival_s=time.monotonic(), priority=priority, cache_salt=salt
        )
        self._engine.admit(request)
        return request

    def _run(self, states: Sequence[State[Output]], use_tqdm: bool) -> list[Output]:
        finished: dict[str, Output] = {}
        with seldom_collected(), Progress(len(states), "requests", shown=use_tqdm) as progress:
            for output in self._outputs(states):
                if output.finished:
                    finished[output.request_id] = output
                    progress.advance()
        return [finished[state.request.id] for state in states]

    def _outputs(self, states: Sequence[State[Output]]) -> Iterator[Output]:
        """What their callers are to be told, as it comes. Leaving early aborts those that are open."""
        if self._being_read:
            raise RuntimeError("a stream of this LLM is still being read; read it to its end or close it")
        self._being_read = True
        open_states = {state.request.id: state for state in states}
        try:
            self._engine.handle([Add(state.request) for state in states])
            while open_states:
                self._engine.step()
                for news in self._outbox.take():
                    state = open_states.get(news.request_id)
                    output = None if state is None else self._feed(state, news)
                    if output is not None:
                        if output.finished:
                            del open_states[output.request_id]
                        yield output
        finally:
            self._being_read = False
            self._engine.handle([Abort(request_id) for request_id in open_states])

    def _feed(self, state: State[Output], news: SequenceOutput) -> Output | None:
        output, stopped = state.feed((news,))
        if stopped:
            self._engine.handle([Finish(state.request.id, index, FinishReason.STOP, num_tokens) for index, num_tokens in stopped])
        return output


def _refuse_foreign(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in FOREIGN_ARGUMENTS:
            raise TypeError(f"there is no argument {name}")
        if value and value != "auto":
            raise InvalidRequest(name, value, FOREIGN_ARGUMENTS[name])


def _priorities(given: int | Sequence[int] | None, count: int) -> Sequence[int]:
    if given is None or isinstance(given, int):
        return [given or 0] * count
    if len(given) != count:
        raise InvalidRequest("priority", len(given), f"give one for each of the {count} prompts")
    return given


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many: a text, a mapping and a list of integers are one."""
    if isinstance(prompts, (str, Mapping)) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # pyright: ignore[reportReturnType]
    return list(prompts)  # pyright: ignore[reportReturnType]
