"""From a prompt to its vector: what is asked of the engine, and what becomes of the state that it gives back.

A vector is the model's state after its last norm, of the last token or the mean over all, as the model's pooling says; scaled to length 1
unless asked otherwise. Shorter vectors (`dimensions`) are leading parts, scaled anew, and only where the model was trained so that these
mean something (Matryoshka Representation Learning; Kusupati et al. 2022).
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.types import (
    EmbeddingOutput,
    EmbeddingRequestOutput,
    FinishReason,
    InvalidRequest,
    Pooling,
    Request,
    RequestMetrics,
    SamplingParams,
    SequenceOutput,
)


@dataclass(frozen=True)
class EmbeddingSpace:
    """The vectors that a model gives."""

    num_dimensions: int
    pooling: Pooling = "last"
    shorter: tuple[int, ...] | None = ()  # lengths of leading parts that can be asked for; None: any

    @classmethod
    def of(cls, num_dimensions: int, config: Mapping[str, Any], pooler: Mapping[str, Any], asked: str = "auto") -> EmbeddingSpace:
        """`config` is the model's config.json, `pooler` its 1_Pooling/config.json as Sentence Transformers write it (empty: none)."""
        pooling: Pooling = "mean" if asked == "mean" or (asked == "auto" and pooler.get("pooling_mode_mean_tokens")) else "last"
        shorter = config.get("matryoshka_dimensions")
        if shorter is not None:
            return cls(num_dimensions, pooling, tuple(shorter))
        return cls(num_dimensions, pooling, None if config.get("is_matryoshka") else ())

    def check(self, dimensions: int | None) -> None:
        """Raise `InvalidRequest` for a length that the vectors cannot have."""
        if dimensions is None or dimensions == self.num_dimensions:
            return
        if self.shorter is None and 1 <= dimensions < self.num_dimensions:
            return
        if dimensions not in (self.shorter or ()):
            whole = f"{self.num_dimensions}, the model's own"
            part = f"1 to {whole}" if self.shorter is None else f"{', '.join(map(str, self.shorter))} or {whole}" if self.shorter else whole
            raise InvalidRequest("dimensions", dimensions, f"vectors of this model can have {part}")

    def params(self, truncate_prompt_tokens: int | None = None) -> SamplingParams:
        """What to ask of the engine: the vector comes with the first token, which nobody looks at."""
        return SamplingParams(
            temperature=0.0, max_tokens=1, detokenize=False, pooling=self.pooling, truncate_prompt_tokens=truncate_prompt_tokens
        )

    def vector(self, pooled: bytes, dimensions: int | None = None, normalize: bool = True) -> array[float]:
        """The vector as float32 [dimensions], in the machine's byte order."""
        values = array("f", pooled)
        if sys.byteorder == "big":
            values.byteswap()
        values = values[:dimensions]
        length = math.hypot(*values)
        if not normalize or length == 0:
            return values
        return array("f", [value / length for value in values])


def as_bytes(vector: Sequence[float]) -> bytes:
    """float32 in little-endian order, as OpenAI's base64 form has it."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine between two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


class EngineFailed(RuntimeError):
    """The engine could not finish this request; the text is its reason."""


class PoolingState:
    """A request for a vector, fed with the engine's news until `finished`: what `RequestState` is to one for texts."""

    num_output_tokens = 0  # the one that is made is nobody's

    def __init__(
        self,
        request: Request,
        space: EmbeddingSpace,
        dimensions: int | None = None,
        normalize: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.metrics = RequestMetrics(arrival_time=request.arrival_s)
        self.num_cached_tokens: int | None = None
        self.cache_miss: str | None = None
        self.finish_reasons: set[FinishReason | None] = {None}
        self._space, self._dimensions, self._normalize = space, dimensions, normalize
        self._clock = clock

    @property
    def finished(self) -> bool:
        return None not in self.finish_reasons

    def growing(self, index: int) -> None:
        return None  # there is no text

    def feed(self, news: Iterable[SequenceOutput]) -> tuple[EmbeddingRequestOutput | None, list[tuple[int, int]]]:
        """The vector, once it is there; nothing is ever ended by the front. Raises `EngineFailed`."""
        for one in news:
            if one.num_cached_tokens is not None or one.pooled is not None:
                self.num_cached_tokens, self.cache_miss, self.metrics.time_in_queue = one.num_cached_tokens, one.cache_miss, one.queued_s
            if one.finish_reason is not None:
                self.finish_reasons = {one.finish_reason}
                self.metrics.finished_time = self._clock()
                return self._output(one), []
        return None, []

    def abort(self) -> EmbeddingRequestOutput | None:
        """It will get no vector."""
        self.finish_reasons = {FinishReason.ABORT}
        raise EngineFailed("the request was aborted")

    def _output(self, news: SequenceOutput) -> EmbeddingRequestOutput:
        if news.pooled is None or news.finish_reason is FinishReason.ERROR:
            raise EngineFailed(str(news.stop_reason))
        vector = self._space.vector(news.pooled, self._dimensions, self._normalize)
        return EmbeddingRequestOutput(
            self.request.id, EmbeddingOutput(vector), list(self.request.prompt_token_ids), self.num_cached_tokens or 0
        )
