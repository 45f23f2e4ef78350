"""An engine that says what a script tells it to, and a tokeniser whose tokens are any pieces a test likes.

The engine keeps the rules of a real one: it ends at `max_tokens` and at ending ids, gives log-probabilities where asked, forgets a request
whose stream is closed, and says nothing more of a continuation that the front has ended.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from octavo.engine.client import EngineDead, EngineStats, Reader
from octavo.text.detokenize import whole_text
from octavo.types import FinishReason, Request, SequenceOutput, TokenLogprobs

BOS, EOS, END_OF_TURN = 256, 257, 258
FIRST_PIECE = 300
VOCAB_SIZE = 4096
Piece = str | bytes | int


class PieceTokenizer:
    """Ids 0 to 255 are single bytes, then come three special tokens, then whatever pieces were asked for."""

    eos_token_ids = (EOS,)
    special_ids = frozenset((BOS, EOS, END_OF_TURN))
    vocab_size = VOCAB_SIZE
    strips_leading_space = False
    bos_token_id, eos_token_id = BOS, EOS
    chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {BOS: b"<s>", EOS: b"</s>", END_OF_TURN: b"<|end|>"} | {i: bytes([i]) for i in range(256)}
        self.ids = {piece: token_id for token_id, piece in self.pieces.items()}

    def token(self, piece: Piece) -> int:
        if isinstance(piece, int):
            return piece
        data = piece.encode() if isinstance(piece, str) else piece
        if data not in self.ids:
            token_id = FIRST_PIECE + len(self.ids) - 259
            assert token_id < VOCAB_SIZE
            self.ids[data], self.pieces[token_id] = token_id, data
        return self.ids[data]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for at, part in enumerate(text.split("<s>")):
            ids += ([BOS] if at else []) + list(part.encode())
        return [BOS, *ids] if add_special_tokens else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and i in self.special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def id_to_token(self, token_id: int) -> str | None:
        return self.pieces[token_id].decode("utf-8", "replace") if token_id in self.pieces else None

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces.get(token_id, b"")

    def token_texts(self, skip_special_tokens: bool) -> list[str | None]:
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        return ["" if number in skipped else whole_text(self.token_bytes(number)) for number in range(max(self.pieces) + 1)]


@dataclass
class Script:
    """What one continuation says. After its pieces comes the model's end id, unless `forever` repeats them."""

    pieces: Sequence[Piece] = ("Hello", ",", " wor", "ld", "!")
    per_step: int = 1
    prefill_s: float = 0.0
    step_s: float = 0.0
    forever: bool = False
    fail_after: int | None = None  # tokens, then the request ends with an error
    die_after: int | None = None  # tokens, then the engine dies
    num_cached_tokens: int = 0
    cache_miss: str | None = None


def hand_over(news: SequenceOutput, reader: Reader) -> None:
    """As an engine behind a wire does."""
    if len(news.token_ids) == 1 and news == SequenceOutput(news.request_id, news.index, news.token_ids):
        reader.taker(news.index)(news.token_ids[0])
    else:
        reader.take(news)


@dataclass
class ScriptedEngine:
    tokenizer: PieceTokenizer
    script: Script | Callable[[Request, int], Script] = field(default_factory=Script)
    dead: str | None = None
    requests: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished: list[tuple[str, int, FinishReason, int]] = field(default_factory=list)
    active: set[str] = field(default_factory=set)
    closed: bool = False
    num_steps: int = 0
    stuck: bool = False  # in the middle of a step: nothing is said, and no question answered
    orders: list[tuple[object, ...]] = field(default_factory=list)  # that it was given
    complaints: list[str] = field(default_factory=list)  # about each of them
    findings: list[dict[str, object]] = field(default_factory=list)  # its advice
    _open: dict[str, set[int]] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    doors = ()  # in this process there is none

    def lose(self, reason: str) -> None:
        self.dead = reason

    def add(self, request: Request, reader: Reader) -> None:
        if self.dead:
            raise EngineDead(self.dead)
        assert request.id not in self.active, "ids must be unique"
        self.requests.append(request)
        self.active.add(request.id)
        self._open[request.id] = set(range(request.params.n))
        self._tasks[request.id] = asyncio.create_task(self._tell(request, reader))

    async def _tell(self, request: Request, reader: Reader) -> None:
        left = self._open[request.id]
        try:
            async for news in self._run(request):
                for one in news:
                    if one.index in left:
                        if one.finish_reason is not None:
                            self._ended(request.id, one.index)
                        hand_over(one, reader)
                if not left:
                    return
        except EngineDead as error:
            reader.lost(str(error))

    async def stream(self, request: Request) -> AsyncIterator[list[SequenceOutput]]:
        """The news alone, for tests of the text."""
        async for news in self._run(request):
            yield news

    def _ended(self, request_id: str, index: int) -> None:
        self._open[request_id].discard(index)
        if not self._open[request_id]:
            self.active.discard(request_id)

    async def _run(self, request: Request) -> AsyncIterator[list[SequenceOutput]]:
        scripts = [self.script(request, i) if callable(self.script) else self.script for i in range(request.params.n)]
        await asyncio.sleep(scripts[0].prefill_s)
        speakers = [self._speak(request, index, script) for index, script in enumerate(scripts)]
        while speakers:
            news: list[SequenceOutput] = []
            for speaker in list(speakers):
                ended_by_front = [(r, i) for r, i, _, _ in self.finished if r == request.id]
                try:
                    one = next(speaker)
                except StopIteration:
                    speakers.remove(speaker)
                    continue
                if (request.id, one.index) in ended_by_front:
                    speakers.remove(speaker)
                    continue
                if one.finish_reason is not None:
                    speakers.remove(speaker)
                news.append(one)
            while self.stuck:
                await asyncio.sleep(0.01)
            self.num_steps += 1
            if self.dead:  # what it said last is lost
                raise EngineDead(self.dead)
            if news:
                yield news
            await asyncio.sleep(scripts[0].step_s)

    def _speak(self, request: Request, index: int, script: Script):
        params = request.params
        limit = params.max_tokens or 1 << 30
        told = 0
        first = True
        tokens = self._tokens(script)
        while True:
            batch: list[int] = []
            reason, stop_reason = None, None
            while len(batch) < script.per_step and reason is None:
                if script.die_after is not None and told + len(batch) >= script.die_after:
                    self.dead = "RuntimeError: the script says that the engine dies"
                    break
                if script.fail_after is not None and told + len(batch) >= script.fail_after:
                    reason, stop_reason = FinishReason.ERROR, "logits are not finite"
                    break
                token_id = next(tokens)
                batch.append(token_id)
                if token_id in params.ending_token_ids and told + len(batch) >= params.min_tokens:
                    reason = FinishReason.STOP
                    stop_reason = None if token_id in params.eos_token_ids else token_id
                elif told + len(batch) >= limit:
                    reason = FinishReason.LENGTH
            told += len(batch)
            yield SequenceOutput(
                request_id=request.id,
                index=index,
                token_ids=tuple(batch),
                logprobs=() if params.logprobs is None else tuple(self.position(t, params.logprobs) for t in batch),
                prompt_logprobs=self._prompt(request) if first and index == 0 else (),
                finish_reason=reason,
                stop_reason=stop_reason,
                num_cached_tokens=script.num_cached_tokens if first else None,
                queued_s=0.001 if first else None,
                cache_miss=script.cache_miss if first else None,
                pooled=self.pooled(request) if first and params.pooling else None,
            )
            first = False
            if reason is not None:
                return

    def _tokens(self, script: Script):
        while True:
            yield from map(self.tokenizer.token, script.pieces)
            if not script.forever:
                while True:
                    yield EOS

    def _prompt(self, request: Request) -> tuple[TokenLogprobs, ...]:
        k = request.params.prompt_logprobs
        return () if k is None else tuple(self.position(t, k) for t in request.prompt_token_ids[1:])

    def pooled(self, request: Request) -> bytes:
        """A vector that tells texts apart: of how often bytes modulo 4 are in it."""
        counts = [sum(token_id % 4 == i for token_id in request.prompt_token_ids) for i in range(4)]
        return struct.pack("<4f", *counts)

    def position(self, token_id: int, k: int) -> TokenLogprobs:
        """The chosen token has rank 2; the alternatives are fixed by it."""
        others = [(token_id + 1 + i) % 256 for i in range(k)]
        values = [-math.log(2 + i) for i in range(k)]
        return TokenLogprobs((token_id, *others), (-1.5, *values), 2)

    def finish(self, request_id: str, index: int, reason: FinishReason, num_tokens: int) -> None:
        self.finished.append((request_id, index, reason, num_tokens))
        if request_id in self._open:
            self._ended(request_id, index)

    def abort(self, request_id: str) -> None:
        if not self._open.pop(request_id):
            return
        self.active.discard(request_id)
        self.aborted.append(request_id)
        task = self._tasks.pop(request_id)
        if task is not asyncio.current_task():
            task.cancel()

    async def stats(self) -> list[EngineStats]:
        while self.stuck:
            await asyncio.sleep(0.01)
        return [EngineStats(num_requests_running=len(self.active), num_steps=self.num_steps)]

    async def advice(self) -> list[dict[str, object]]:
        return self.findings

    async def order(self, name: str, *args: object) -> list[str]:
        self.orders.append((name, *args))
        return self.complaints

    async def reset_prefix_cache(self) -> bool:
        return not self.active

    async def close(self, drain_s: float = 0.0) -> None:
        self.closed = True
