"""The one text core: turns the engine's news of a request into what its caller sees, for `LLM` and the server alike.

Law: however the tokens are split over steps, and whatever the output kind, the pieces join to the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from octavo.text.detokenize import Detokenizer, Tokenizer
from octavo.text.logprobs import decode_position
from octavo.text.stops import StopScanner, StopStrings, stop_strings
from octavo.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    Request,
    RequestMetrics,
    RequestOutput,
    SequenceOutput,
    TokenLogprobs,
)


class Continuation:
    """One of the n texts of a request as it grows. `give` hands out what is there; in a stream of deltas that is then forgotten."""

    __slots__ = (
        "_cumulative_logprob", "_detokenizer", "_goes_on", "_include_stop", "_interval", "_logprobs", "_min_tokens", "_num_characters",
        "_num_told", "_pieces", "_scanner", "_text_offsets", "_token_ids", "_tokenizer", "_with_logprobs", "by_text", "deferred",
        "finish_reason", "index", "num_tokens", "stop_reason", "told_s",
    )  # fmt: skip

    def __init__(
        self, index: int, request: Request, tokenizer: Tokenizer | None, stops: StopStrings | None, interval: int = 1
    ) -> None:
        params = request.params
        self.index = index
        self.num_tokens = 0
        self.told_s: float | None = None
        self._num_told = 0  # of them, when something was given last
        self._interval = interval
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._cumulative_logprob = 0.0
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._text_offsets: list[int] = []
        self._tokenizer = tokenizer
        self._with_logprobs = params.logprobs is not None
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_characters = 0  # decoded so far, also those held back; counted where log-probabilities are
        self._scanner = None if stops is None else StopScanner(stops, include=self._include_stop)
        self._detokenizer = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens, context=request.prompt_token_ids)
        self._goes_on = False  # it has begun and not ended
        more = self._with_logprobs or params.prompt_logprobs is not None or params.output_kind is not OutputKind.DELTA
        self.by_text = self._detokenizer is not None and not more
        # Where nobody looks at the text before its end, and nothing in it can end it, tokens are only kept until then.
        self.deferred = params.output_kind is OutputKind.FINAL_ONLY and self._scanner is None and not self._with_logprobs

    def short_text(self, token_id: int) -> str | None:
        """Take in one more token of a stream of deltas; the text that is certain now. None, and nothing is done, where it begins or ends
        the text. Only for those that are `by_text`."""
        detokenizer, scanner = self._detokenizer, self._scanner
        assert detokenizer is not None, "it is by text"
        if not self._goes_on:
            return None
        texts = detokenizer.texts
        text = texts[token_id] if detokenizer.between and token_id < len(texts) else None
        if text is None or not (scanner is None or scanner.passes(text)):
            text = self._certain_text(detokenizer, token_id, text)
            if text is None:
                return None
        self.num_tokens += 1
        return text if self._interval == 1 else self._due_text(text)

    def _certain_text(self, detokenizer: Detokenizer, token_id: int, whole: str | None) -> str | None:
        """The same of a token that may be part of a stop string, or, where it has no `whole` text, begins or ends inside a character."""
        text, scanner = detokenizer.foresee(token_id) if whole is None else whole, self._scanner
        if scanner is not None:
            if scanner.stops_in(text):
                return None
            text, _ = scanner.push(text)
        if whole is None:
            detokenizer.push(token_id)
        return text

    def _due_text(self, certain: str) -> str:
        """The text that is told at this token, where not every token tells its own."""
        self._pieces.append(certain)
        if not self.due:
            return ""
        self._num_told = self.num_tokens
        certain, self._pieces = "".join(self._pieces), []
        return certain

    @property
    def due(self) -> bool:
        """Whether its caller is to be told: of the first token, of every so many, and of the end."""
        return not self._num_told or self.num_tokens - self._num_told >= self._interval or self.finish_reason is not None

    def keep(self, token_ids: Sequence[int]) -> None:
        """Take in tokens of a deferred text that goes on."""
        self._token_ids.extend(token_ids)
        self.num_tokens += len(token_ids)

    def push(self, news: SequenceOutput) -> bool:
        """Take in the news; True when a stop string has ended the text, which the engine does not know yet."""
        by_token = news.finish_reason is FinishReason.STOP and bool(news.token_ids)  # else a grammar has ended it, behind its last token
        self._goes_on = True
        if self.deferred:
            if news.finish_reason is None:
                self.keep(news.token_ids)
                return False
            news = news._replace(token_ids=(*self._token_ids, *news.token_ids))
            self._token_ids, self.num_tokens = [], 0
        last = len(news.token_ids) - 1
        for at, token_id in enumerate(news.token_ids):
            if self._with_logprobs:
                self._record(news.logprobs[at])
            self._token_ids.append(token_id)
            self.num_tokens += 1
            if self._detokenizer is not None:
                shown = self._include_stop or at < last or not by_token
                if shown and self._extend(self._detokenizer.push(token_id)):
                    return True
        if news.finish_reason is not None:
            if self._detokenizer is not None and self._extend(self._detokenizer.flush()):
                return True
            self._end(news.finish_reason, news.stop_reason)
        return False

    def _record(self, entry: TokenLogprobs) -> None:
        pending = b"" if self._detokenizer is None else self._detokenizer.pending
        self._logprobs.append(decode_position(entry, self._tokenizer, pending))
        self._text_offsets.append(self._num_characters)
        self._cumulative_logprob += entry.logprobs[0]

    def _extend(self, piece: str) -> bool:
        """Add decoded text; True when a stop string ended it."""
        if not piece:
            return False
        self._num_characters += len(piece)
        if self._scanner is None:
            self._pieces.append(piece)
            return False
        certain, stop = self._scanner.push(piece, armed=self.num_tokens >= self._min_tokens)
        self._pieces.append(certain)
        if stop is None:
            return False
        self._end(FinishReason.STOP, stop)
        return True

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        if self._scanner is not None:
            self._pieces.append(self._scanner.flush())
        self.finish_reason, self.stop_reason = reason, stop_reason
        self._goes_on = False

    def give(self, kind: OutputKind) -> CompletionOutput:
        given = CompletionOutput(
            index=self.index,
            text="".join(self._pieces),
            token_ids=self._token_ids,
            finish_reason=None if self.finish_reason is None else self.finish_reason.value,
            stop_reason=self.stop_reason,
        )
        if self._with_logprobs:
            given.cumulative_logprob = self._cumulative_logprob
            given.logprobs, given.text_offsets = self._logprobs, self._text_offsets
        self._num_told = self.num_tokens
        if kind is OutputKind.DELTA:
            self._pieces, self._token_ids, self._logprobs, self._text_offsets = [], [], [], []
        else:
            self._pieces = [given.text]
            self._token_ids = self._token_ids.copy()
            self._logprobs, self._text_offsets = self._logprobs.copy(), self._text_offsets.copy()
        return given


class PromptLogprobs:
    """Log-probabilities of the prompt's own tokens, complete once the last one is known."""

    def __init__(self, token_ids: tuple[int, ...], tokenizer: Tokenizer | None) -> None:
        self._token_ids = token_ids
        self._tokenizer = tokenizer
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, skip_special_tokens=False)
        self.positions: list[dict[int, Logprob] | None] = [None]
        self._pass(token_ids[0])

    @property
    def complete(self) -> bool:
        return len(self.positions) == len(self._token_ids)

    def push(self, entries: Iterable[TokenLogprobs]) -> None:
        for entry in entries:
            pending = b"" if self._detokenizer is None else self._detokenizer.pending
            self.positions.append(decode_position(entry, self._tokenizer, pending))
            self._pass(entry.token_ids[0])

    def _pass(self, token_id: int) -> None:
        if self._detokenizer is not None:
            self._detokenizer.push(token_id)


class RequestState:
    """All continuations of one request, fed with the engine's news until `finished`."""

    __slots__ = (
        "_clock", "_num_open", "_prompt_logprobs", "_prompt_logprobs_given", "cache_miss", "continuations", "metrics", "num_cached_tokens",
        "prompt", "request",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float] = time.monotonic,
        stream_interval: int = 1,
    ) -> None:
        """Of a text that is told while it grows, `stream_interval` tokens are told at once, or more where the request says so."""
        params = request.params
        interval = max(stream_interval, params.stream_interval or 1)
        self.request = request
        self.prompt = prompt
        self.metrics = RequestMetrics(arrival_time=request.arrival_s)
        self.num_cached_tokens: int | None = None
        self.cache_miss: str | None = None
        self._clock = clock
        stops = stop_strings(params.stop) if params.stop else None  # pyright: ignore[reportArgumentType]
        self.continuations = [Continuation(index, request, tokenizer, stops, interval) for index in range(params.n)]
        self._num_open = params.n
        asked = params.prompt_logprobs is not None and len(request.prompt_token_ids) > 0
        self._prompt_logprobs = PromptLogprobs(request.prompt_token_ids, tokenizer) if asked else None
        self._prompt_logprobs_given = False

    @property
    def finished(self) -> bool:
        return self._num_open == 0

    @property
    def num_output_tokens(self) -> int:
        """Of all continuations, without those past a stop string."""
        return sum(continuation.num_tokens for continuation in self.continuations)

    @property
    def finish_reasons(self) -> set[FinishReason | None]:
        return {continuation.finish_reason for continuation in self.continuations}

    def growing(self, index: int) -> Continuation:
        return self.continuations[index]

    def feed(self, news: Iterable[SequenceOutput]) -> tuple[RequestOutput | None, list[tuple[int, int]]]:
        """What the caller is to be told now, if anything, and the continuations that a stop string ended, as (index, number of tokens):
        the engine must be told of those. News of a continuation that has ended are late and ignored."""
        stopped: list[tuple[int, int]] = []
        changed: list[Continuation] = []
        for one in news:
            continuation = self.continuations[one.index]
            if continuation.finish_reason is not None:
                continue
            if continuation.deferred and one.finish_reason is None and one.num_cached_tokens is None and not one.prompt_logprobs:
                continuation.keep(one.token_ids)  # the usual news of an offline batch: nothing to tell anybody
                continue
            self._note(one)
            if continuation.push(one):
                stopped.append((one.index, continuation.num_tokens))
            self._num_open -= continuation.finish_reason is not None
            if continuation not in changed and (one.token_ids or one.finish_reason):
                changed.append(continuation)
        if self.finished and self.metrics.finished_time is None:
            self.metrics.finished_time = self._clock()
        return self._output(changed), stopped

    def abort(self) -> RequestOutput | None:
        """End every continuation that is still open: the engine will say no more of them."""
        open_ = [continuation.index for continuation in self.continuations if continuation.finish_reason is None]
        return self.feed([SequenceOutput(self.request.id, index, finish_reason=FinishReason.ABORT) for index in open_])[0]

    def _note(self, news: SequenceOutput) -> None:
        if news.token_ids and self.metrics.first_token_time is None:
            self.metrics.first_token_time = self._clock()
        if self.metrics.time_in_queue is None:
            self.metrics.time_in_queue = news.queued_s
        if self.num_cached_tokens is None and news.index == 0:
            self.num_cached_tokens, self.cache_miss = news.num_cached_tokens, news.cache_miss
        if self._prompt_logprobs is not None and news.index == 0:
            self._prompt_logprobs.push(news.prompt_logprobs)

    def _output(self, changed: list[Continuation]) -> RequestOutput | None:
        kind = self.request.params.output_kind
        due = [continuation for continuation in changed if continuation.due]
        if not due or (kind is OutputKind.FINAL_ONLY and not self.finished):
            return None
        shown = due if kind is OutputKind.DELTA else self.continuations
        return RequestOutput(
            request_id=self.request.id,
            prompt=self.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids) if kind is not OutputKind.DELTA else [],
            outputs=[continuation.give(kind) for continuation in shown],
            finished=self.finished,
            prompt_logprobs=self._prompt_positions(kind),
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            cache_miss=self.cache_miss,
        )

    def _prompt_positions(self, kind: OutputKind) -> list[dict[int, Logprob] | None] | None:
        """In a stream of deltas they come once, as soon as they are complete."""
        if self._prompt_logprobs is None or not self._prompt_logprobs.complete:
            return None
        if kind is OutputKind.DELTA and self._prompt_logprobs_given:
            return None
        self._prompt_logprobs_given = True
        return self._prompt_logprobs.positions
