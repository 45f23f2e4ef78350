"""The constraints of live requests: compiled by a thread, followed token by token, and asked for masks.

Whatever goes wrong with one ends its own text with an error; a masked slice is never sampled without its mask.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property

from octavo.core.limits import Preparation
from octavo.core.plan import Plan
from octavo.core.sequence import Sequence as Continuation
from octavo.grammar.following import Follower
from octavo.grammar.library import GrammarError, Matcher, Vocabulary, grammar_of
from octavo.types import FinishReason, InvalidRequest, Request, SequenceOutput, StructuredOutputs

log = logging.getLogger(__name__)
KEPT_GRAMMARS = 64  # compiled ones, for requests that bring the same
COMPILE_LIMIT_S = 10.0
WAIT_S = 0.005  # while nothing else is to be done; commands are looked at in between


@dataclass(frozen=True)
class Job:
    """A constraint being compiled."""

    request: Request
    matcher: Future[Matcher]
    deadline_s: float


class Grammars:
    """`vocabulary` makes the model's vocabulary, when the first constraint comes. The scheduler must know `preparation` as a limit."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], clock: Callable[[], float]) -> None:
        self.preparation = Preparation()
        self._make_vocabulary = vocabulary
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._followers: dict[tuple[str, int], Follower] = {}
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()  # the thread's own

    @property
    def active(self) -> bool:
        """Whether any live request has a constraint."""
        return bool(self._followers or self._jobs)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def add(self, request: Request) -> None:
        """A request has arrived: if it has a constraint, nothing of it is planned until that is ready."""
        constraint = request.params.structured_outputs
        if constraint is not None:
            self.preparation.pending.add(request.id)
            matcher = self._thread.submit(self._compile, constraint)
            self._jobs[request.id] = Job(request, matcher, self._clock() + COMPILE_LIMIT_S)

    def forget(self, request_id: str, index: int | None = None) -> None:
        """One continuation of a request, or all, will say no more."""
        if index is not None:
            self._followers.pop((request_id, index), None)
        elif self.active:
            self._release(request_id)
            for key in [key for key in self._followers if key[0] == request_id]:
                del self._followers[key]

    def forget_all(self) -> None:
        for request_id in list(self._jobs):
            self._release(request_id)
        self._followers.clear()

    def collect(self) -> list[SequenceOutput]:
        """Let requests go whose constraints are ready. News of those whose constraints are not to be had."""
        news: list[SequenceOutput] = []
        for request_id, job in list(self._jobs.items()):
            if not job.matcher.done() and self._clock() < job.deadline_s:
                continue
            self._release(request_id)
            reason = self._begin(job)
            if reason is not None:
                log.warning("%s: its constraint cannot be used: %s", request_id, reason)
                news += [_failed(request_id, index, reason) for index in range(job.request.params.n)]
        return news

    def wait(self) -> None:
        """For a moment, while constraints are compiled and there is nothing else to do."""
        if self._jobs:
            wait([job.matcher for job in self._jobs.values()], WAIT_S, FIRST_COMPLETED)

    def follow(self, news: Sequence[SequenceOutput]) -> list[SequenceOutput]:
        """Take note of new tokens. The same news, with an end where a constraint has come to its own or was broken."""
        told: list[SequenceOutput] = []
        for said in news:
            told += self._follow(said) if (said.request_id, said.index) in self._followers else (said,)
        return told

    def masks(self, plan: Plan, sequences: Sequence[Continuation]) -> tuple[list[bytes | None], list[SequenceOutput]]:
        """What may be sampled for the masked slices of a plan, whose sequences these are, all their tokens so far being known. None:
        anything, as it is thought, or will be ignored. And news of those that end instead."""
        masks: list[bytes | None] = []
        news: list[SequenceOutput] = []
        for i in plan.masked:
            seq = sequences[i]
            key = (seq.request_id, seq.index)
            bits = None
            if not seq.ended and plan.slices[i].generation == seq.generation:
                try:
                    follower = self._followers[key]
                    bits = follower.mask()
                    if follower.ended:  # as is sometimes noticed late
                        self.forget(*key)
                        news.append(SequenceOutput(*key, finish_reason=FinishReason.STOP))
                except Exception as error:
                    news.append(self._broken(key, error))
            masks.append(bits)
        return masks, news

    def close(self) -> None:
        if "_thread" in self.__dict__:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: StructuredOutputs) -> Matcher:
        """In the thread. Raises `GrammarError` and `InvalidRequest`."""
        grammar = grammar_of(constraint)
        matcher = self._compiled.pop(grammar, None) or self._vocabulary.matcher(grammar)
        self._compiled[grammar] = matcher
        if len(self._compiled) > KEPT_GRAMMARS:
            self._compiled.popitem(last=False)
        first = matcher.copy()
        first.mask()  # some faults show here only
        if constraint.thinking is not None:
            self._vocabulary.spelling(constraint.thinking.opening.encode())
        return first

    def _begin(self, job: Job) -> str | None:
        """Begin to follow; or the reason why that cannot be."""
        request = job.request
        if not job.matcher.done():
            return f"compiling it takes longer than {COMPILE_LIMIT_S:g} s"
        try:
            matcher = job.matcher.result()
        except (GrammarError, InvalidRequest) as error:
            return str(error)
        except Exception as error:
            log.exception("a constraint could not be compiled")
            return f"{type(error).__name__}: {error}"
        for index in range(request.params.n):
            self._followers[request.id, index] = Follower(self._vocabulary, matcher.copy(), request.params)
        return None

    def _follow(self, said: SequenceOutput) -> list[SequenceOutput]:
        key = (said.request_id, said.index)
        follower = self._followers[key]
        if said.finish_reason is not None:
            self.forget(*key)
            return [said]
        try:
            follower.advance(said.token_ids)
            if not follower.ended:
                return [said]
        except Exception as error:
            return [self._broken(key, error)]
        self.forget(*key)
        return [said, SequenceOutput(*key, finish_reason=FinishReason.STOP)]  # apart: its last token is no end id and belongs to the text

    def _broken(self, key: tuple[str, int], error: Exception) -> SequenceOutput:
        log.error("%s/%d: its constraint cannot be followed: %r", *key, error)
        self.forget(*key)
        return _failed(*key, str(error))

    def _release(self, request_id: str) -> None:
        self.preparation.pending.discard(request_id)
        job = self._jobs.pop(request_id, None)
        if job is not None:
            job.matcher.cancel()


def _failed(request_id: str, index: int, reason: str) -> SequenceOutput:
    return SequenceOutput(request_id, index, finish_reason=FinishReason.ERROR, stop_reason=f"structured output: {reason}")


def no_vocabulary() -> Vocabulary:
    """Where there is no tokeniser."""
    raise GrammarError("there is no tokeniser, and a constraint is on texts")
