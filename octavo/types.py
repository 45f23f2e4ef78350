"""Plain data that crosses the border of the engine: requests, sampling parameters and outputs. No torch, no I/O.

Names and defaults follow vLLM's `SamplingParams`, `RequestOutput` and `CompletionOutput`, so scripts move over unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args

MAX_CONTINUATIONS = 16384
GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM
SMALLEST_TEMPERATURE = 1e-2  # between the two, the temperature is raised to this to stay clear of overflow


class InvalidRequest(ValueError):
    """What a caller asked for cannot be done: names the field, the value and what works."""

    def __init__(self, field_name: str, value: object, allowed: str) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(f"{field_name} = {shown} is not possible: {allowed}")
        self.field = field_name
        self.value = shown
        self.allowed = allowed


class FinishReason(str, Enum):
    """Why a sequence ended; the values are OpenAI's, with `abort` and `error` added."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


Pooling = Literal["last", "mean"]


class OutputKind(Enum):
    """What each `RequestOutput` of a stream carries."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


RequestOutputKind = OutputKind  # vLLM's name for it


@dataclass(frozen=True)
class Thinking:
    """What a model thinks before it answers, between two tags. `opened`: the prompt has begun it."""

    opening: str
    closing: str
    opened: bool


CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True)
class StructuredOutputs:
    """Exactly one constraint on the text (vLLM's `StructuredOutputsParams`)."""

    json: str | dict[str, Any] | None = None  # a JSON schema
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # in Lark's form, or in GBNF
    disable_any_whitespace: bool = False  # between the parts of a JSON text
    whitespace_pattern: str | None = None  # a regular expression for it
    thinking: Thinking | None = None  # filled in by the front: the constraint begins behind it

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequest("structured_outputs", given, f"give exactly one of {', '.join(CONSTRAINTS)}")
        if self.value is False or self.value == "" or self.value == []:
            raise InvalidRequest(f"structured_outputs.{self.kind}", self.value, "the constraint is empty; leave the field out instead")

    @property
    def kind(self) -> str:
        """Which of the constraints it is."""
        return next(name for name in CONSTRAINTS if getattr(self, name) is not None)

    @property
    def value(self) -> Any:
        return getattr(self, self.kind)


StructuredOutputsParams = StructuredOutputs  # vLLM's name for it


def _number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequest(name, value, "a finite number is needed")
    if value < low or value > high or (open_low and value == low):
        left = "(" if open_low else "["
        raise InvalidRequest(name, value, f"it must lie in {left}{low}, {high}]")


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, value, "an integer is needed")
    if value < low or (high is not None and value > high):
        raise InvalidRequest(name, value, f"it must be at least {low}" + ("" if high is None else f" and at most {high}"))


def _integers(name: str, values: object, low: int = 0) -> None:
    if not isinstance(values, (list, tuple)):
        raise InvalidRequest(name, values, "a list of token ids is needed")
    for value in values:  # pyright: ignore[reportUnknownVariableType]
        _integer(name, value, low)


# Arguments of vLLM's that have no counterpart here: why, and what to do instead.
FOREIGN_SAMPLING_PARAMS = {
    "best_of": "ask for n texts and choose among them",
    "logprob_token_ids": "use logprobs, which gives the likeliest tokens",
    "flat_logprobs": "log-probabilities come as one mapping a token; leave it out",
    "thinking_token_budget": "how long a model thinks is not limited apart; use max_tokens",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "prompt_logprob_token_ids": "use prompt_logprobs, which gives each token of the prompt and the likeliest ones",
    "prompt_logprob_start": "prompt_logprobs are given from the second token on; leave it out",
    "routed_experts_prompt_start": "which experts a token went through is not given; leave it out",
    "trace_decode_token_ids": "a text is sampled, never dictated; send its tokens as a prompt and ask for prompt_logprobs",
    "watermarking": "texts carry no watermark; leave it out",
    "logits_processors": "stages of your own belong to the engine: --logits-processors (docs/sampling.md); or use logit_bias, bad_words",
    "guided_decoding": "its newer name is structured_outputs",
    "extra_args": "nothing here reads them; leave it out",
}


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. Every field is checked on construction; what needs the vocabulary is checked by `check_vocabulary`.

    Raises `InvalidRequest` with the field, the value and what works.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 mean off
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int | None = None  # tokens that a growing text tells at once; not fewer than --stream-interval
    structured_outputs: StructuredOutputs | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    skip_reading_prefix_cache: bool | None = None
    pooling: Pooling | None = None  # besides the text, a vector of the whole prompt: its last token's state, or the mean of all
    # Filled in by the front, which knows the tokeniser: ids that end a sequence, and banned words as id sequences.
    eos_token_ids: tuple[int, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    # Taken so that scripts of vLLM's are told what to do instead, see FOREIGN_SAMPLING_PARAMS.
    best_of: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    flat_logprobs: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: Any = None
    routed_experts_prompt_start: Any = None
    trace_decode_token_ids: Any = None
    watermarking: Any = None
    logits_processors: Any = None
    guided_decoding: Any = None
    extra_args: Any = None

    def __post_init__(self) -> None:
        self._refuse_foreign()
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        _integer("n", self.n, 1, MAX_CONTINUATIONS)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("repetition_penalty", self.repetition_penalty, 0, 1e6, open_low=True)
        _number("temperature", self.temperature, 0, 1e6)
        _number("top_p", self.top_p, 0, 1, open_low=True)
        _integer("top_k", self.top_k, -1)
        _number("min_p", self.min_p, 0, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest("min_tokens", self.min_tokens, f"it must not be over max_tokens = {self.max_tokens}")
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**63 - 1)
            put("seed", None if self.seed == -1 else self.seed)
        if self.stream_interval is not None:
            _integer("stream_interval", self.stream_interval, 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is True or value is False:
                put(name, 1 if value else None)
            elif value is not None:
                _integer(name, value, -1)
        self._settle_lists(put)
        if self.truncate_prompt_tokens is not None:
            _integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1)
            if self.truncate_prompt_tokens == 0:
                raise InvalidRequest("truncate_prompt_tokens", 0, "use -1 (to the model's length) or a positive number")
        if self.logit_bias is not None:
            for token, bias in self.logit_bias.items():
                _integer("logit_bias", token, 0)
                _number(f"logit_bias[{token}]", bias, -100, 100)
            put("logit_bias", dict(self.logit_bias))
        if self.allowed_token_ids is not None:
            _integers("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidRequest("allowed_token_ids", self.allowed_token_ids, "the list must not be empty")
            put("allowed_token_ids", tuple(self.allowed_token_ids))
        if self.pooling not in (None, *get_args(Pooling)):
            raise InvalidRequest("pooling", self.pooling, f"use {' or '.join(get_args(Pooling))}")
        if self.skip_reading_prefix_cache is None:
            put("skip_reading_prefix_cache", self.prompt_logprobs is not None or self.pooling == "mean")
        self._settle_temperature(put)

    def _settle_lists(self, put: Callable[[str, object], None]) -> None:
        """Lists that may be given as None become tuples."""
        stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        if any(not isinstance(text, str) or not text for text in stop):
            raise InvalidRequest("stop", self.stop, "each stop string must be a text of at least one character")
        if stop and not self.detokenize:
            raise InvalidRequest("stop", self.stop, "stop strings need detokenize=True")
        put("stop", tuple(stop))
        ids, words = (() if given is None else given for given in (self.stop_token_ids, self.bad_words))
        _integers("stop_token_ids", ids)
        put("stop_token_ids", tuple(ids))
        if isinstance(words, str) or any(not isinstance(word, str) or not word for word in words):
            raise InvalidRequest("bad_words", words, "a list of texts of at least one character is needed")
        put("bad_words", tuple(words))

    def _refuse_foreign(self) -> None:
        for name, instead in FOREIGN_SAMPLING_PARAMS.items():
            if getattr(self, name):
                raise InvalidRequest(name, getattr(self, name), instead)

    def _settle_temperature(self, put: Callable[[str, object], None]) -> None:
        """Greedy sampling ignores what would narrow the choice; a tiny temperature is raised."""
        if self.temperature < GREEDY_BELOW:
            if self.n > 1:
                raise InvalidRequest("n", self.n, "greedy sampling (temperature 0) gives n equal texts; use n = 1 or a temperature")
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                put(name, value)
        elif self.temperature < SMALLEST_TEMPERATURE:
            put("temperature", SMALLEST_TEMPERATURE)

    def settled(self, **known: Any) -> SamplingParams:
        """These parameters with values that need no check: `dataclasses.replace` without the cost of one, once for each request."""
        made = object.__new__(SamplingParams)
        made.__dict__.update(self.__dict__, **known)
        return made

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """Ids whose sampling ends the sequence: the model's end ids unless ignored, and the caller's."""
        eos = () if self.ignore_eos else self.eos_token_ids
        return frozenset(eos) | frozenset(self.stop_token_ids)

    def check_vocabulary(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Raise `InvalidRequest` for ids past the vocabulary and for more log-probabilities than the server gives."""
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            for token in getattr(self, name) or ():
                if token >= vocab_size:
                    raise InvalidRequest(name, token, f"token ids must be below the vocabulary size {vocab_size}")
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, name)
            if asked is not None and max_logprobs >= 0 and (asked > max_logprobs or asked == -1):
                raise InvalidRequest(name, asked, f"at most {max_logprobs} (--max-logprobs)")


def _change(params: SamplingParams, name: str, value: object) -> None:
    """`params.max_tokens = 32`, as callers of vLLM's do: checked like new ones. Requests have copies and keep what they were given."""
    vars(params).update(vars(replace(params, **{name: value})))


SamplingParams.__setattr__ = _change  # pyright: ignore[reportAttributeAccessIssue]


@dataclass(frozen=True)
class MediaItem:
    """An image, a video or a sound in a prompt: it fills the token span [offset, offset + length)."""

    kind: str
    content_hash: str
    offset: int
    length: int


@dataclass(frozen=True)
class Request:
    """One prompt to continue. Complete and checked when constructed; `id` is unique in the engine's life."""

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_s: float = 0.0  # a clock of the front's choosing; the core only compares such numbers
    priority: int = 0  # lower runs first
    media: tuple[MediaItem, ...] = ()
    adapter: str | None = None
    cache_salt: str | None = None
    tenant: str | None = None  # whose share of the engine it takes, where shares are kept


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position: the chosen token first, then the top alternatives in falling order."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int  # of the chosen token, from 1


class SequenceOutput(NamedTuple):
    """What the engine tells the front about one continuation after a step: news only, never the whole text.

    A named tuple, since one is made for every token and it is several times cheaper to make than a frozen dataclass.
    """

    request_id: str
    index: int  # which of the n continuations  # pyright: ignore[reportIncompatibleMethodOverride]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # one entry a prompt token from the second on, as they become known
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the token id that ended it, None for the model's end id, or the error's text
    num_cached_tokens: int | None = None  # set once, with the first output of a sequence
    num_preemptions: int = 0
    queued_s: float | None = None  # with the first output: how long the request waited for its first step
    cache_miss: str | None = None  # with the first output: why the prefix cache gave no more
    pooled: bytes | None = None  # with the first output, where asked for: the prompt's vector, float32 in little-endian order


@dataclass(frozen=True)
class Logprob:
    """One token's log-probability."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class RequestMetrics:
    """Times on the front's monotonic clock, in seconds."""

    arrival_time: float = 0.0
    first_token_time: float | None = None
    finished_time: float | None = None
    time_in_queue: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass
class CompletionOutput:
    """One of the n texts of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    text_offsets: list[int] | None = None  # with logprobs: where in the whole text each token's characters begin
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class EmbeddingOutput:
    """The vector of a prompt: float32 [dimensions]."""

    embedding: Sequence[float]


@dataclass
class EmbeddingRequestOutput:
    """A prompt's vector, and what it took."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass
class ScoringOutput:
    """How alike two texts are."""

    score: float


@dataclass
class ScoringRequestOutput:
    """The likeness of a pair of texts: the cosine of their vectors."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]  # of the second text
    finished: bool = True


@dataclass
class RequestOutput:
    """What a request has given so far, or in the end."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    cache_miss: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
