"""How many tokens a step may take: one number, or as many as a target for latencies allows by a model of a step's time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from octavo.config.resolved import Resolved
from octavo.core.plan import StepShape
from octavo.core.sequence import Sequence

Seconds = Callable[[StepShape], float]
AIM = 0.9  # of the target for a step: what the model and the machine are off by is to stay within the rest
SPARED = 0.005  # share of the gaps between tokens that may be longer, since a target is for 99 of 100
SAVED = 16  # so many steps' gaps may be saved up for one long step after another
RESERVE = 0.7  # share of the time until a first token is due that is kept for what may still come
LEAST = 32  # prompt tokens of a step, below which nothing is gained by smaller steps


class StepBudget(Protocol):
    """Asked once for each step."""

    def tokens(self, running: Iterable[Sequence], waiting: Iterable[Sequence], now_s: float) -> int:
        """At least 1, and at least as many as the running sequences that decode need."""
        ...


@dataclass(frozen=True)
class FixedBudget:
    """The same for every step."""

    num_tokens: int

    def tokens(self, running: Iterable[Sequence], waiting: Iterable[Sequence], now_s: float) -> int:
        return self.num_tokens


class Piece(NamedTuple):
    """A prompt that is not read to its end."""

    start: int  # tokens that have been planned
    rest: int
    seen_s: float


class Work(NamedTuple):
    """What a step could do: tokens of sequences that decode, and prompts in order."""

    num_tokens: int
    num_sequences: int
    context: int
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(running: Iterable[Sequence], waiting: Iterable[Sequence], most: int) -> Work:
        """Of prompts no more than `most` tokens."""
        num_tokens = num_sequences = context = given = 0
        pieces: list[Piece] = []
        for seq in running:
            if seq.planned >= seq.fed:
                num_sequences += 1
                num_tokens += 1 + seq.drafts
                context += seq.planned
            else:
                pieces.append(Piece(seq.planned, seq.fed - seq.planned, seq.seen_s))
                given += pieces[-1].rest
        for seq in waiting:
            if given >= most:
                break
            pieces.append(Piece(0, len(seq.tokens), seq.seen_s))
            given += len(seq.tokens)
        return Work(num_tokens, num_sequences, context, tuple(pieces))

    def shape(self, n: int) -> StepShape:
        """Of the step that decodes and reads the next `n` prompt tokens."""
        left, pairs, touched, sampled = n, 0, 0, 0
        for start, rest, _ in self.pieces:
            if left <= 0:
                break
            taken = min(rest, left)
            pairs += taken * start + taken * (taken + 1) // 2
            left -= taken
            touched += 1
            sampled += taken == rest
        return StepShape(self.num_tokens + n, self.num_sequences + touched, self.num_sequences + sampled, n, pairs, self.context)


class TargetBudget:
    """As many prompt tokens beside the sequences that decode as two targets say (0: none), by `seconds` of a step's shape.

    `itl_s` bounds the time of a step, and with it the gap between tokens of whoever decodes; a few gaps in a thousand may be longer, so at
    light load a prompt is read at once. Decodes are never held back: where they alone take longer, no prompt is read beside them.
    `ttft_s` makes steps smaller, as long as every prompt that waits gets its first token within it.
    """

    def __init__(self, seconds: Seconds, most: int, itl_s: float = 0.0, ttft_s: float = 0.0) -> None:
        self._seconds = seconds
        self._most = most
        self._itl_s = itl_s
        self._ttft_s = ttft_s
        self._spare = 0.0  # gaps that may still be longer than the target

    def tokens(self, running: Iterable[Sequence], waiting: Iterable[Sequence], now_s: float) -> int:
        work = Work.of(running, waiting, self._most)
        self._spare = min(self._spare + SPARED * work.num_sequences, SAVED * max(1, work.num_sequences))
        if not work.num_sequences or not work.pieces:
            return self._most
        n = min(max(0, self._most - work.num_tokens), sum(piece.rest for piece in work.pieces))
        if self._itl_s:
            n = self._within(work, n)
        if self._ttft_s:
            n = self._gentle(work, n, now_s)
        return min(work.num_tokens + n, self._most)

    def _within(self, work: Work, n: int) -> int:
        """The most prompt tokens, up to `n`, that keep the step within its target; all of them where that may be missed once."""
        limit_s = AIM * self._itl_s
        if self._seconds(work.shape(n)) <= limit_s:
            return n
        if self._spare >= work.num_sequences:
            self._spare -= work.num_sequences
            return n
        low, high = 0, n
        while high - low > max(1, low >> 6):
            middle = (low + high) // 2
            if self._seconds(work.shape(middle)) <= limit_s:
                low = middle
            else:
                high = middle
        return low

    def _gentle(self, work: Work, n: int, now_s: float) -> int:
        """The fewest prompt tokens, of `n` and its halves, with which all first tokens come in time; `n` if they do with none."""
        while n >= 2 * LEAST and self._in_time(work, n // 2, now_s):
            n //= 2
        return n

    def _in_time(self, work: Work, n: int, now_s: float) -> bool:
        step_s, done = self._seconds(work.shape(n)), 0
        for _, rest, seen_s in work.pieces:
            done += rest
            if now_s + -(-done // n) * step_s > seen_s + (1 - RESERVE) * self._ttft_s:
                return False
        return True


def step_budget(settings: Resolved, seconds: Seconds) -> StepBudget:
    """What the settings ask for. `seconds` says how long a step takes; it is not asked without a target."""
    if settings.target_itl_s or settings.target_ttft_s:
        return TargetBudget(seconds, settings.max_num_batched_tokens, settings.target_itl_s, settings.target_ttft_s)
    return FixedBudget(settings.max_num_batched_tokens)
