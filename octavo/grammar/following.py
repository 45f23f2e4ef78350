"""Following one text through its constraint, which rests while the model thinks."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.grammar.library import GrammarError, Matcher, Vocabulary
from octavo.types import SamplingParams


class Follower:
    """One continuation. All its output tokens go through `advance`, in order; then `mask` says what may follow them.

    With `thinking`, the constraint begins behind the closing tag. Where the prompt has no opening tag, the text may begin with it,
    or keep to the constraint from its first token on; nothing else.
    """

    def __init__(self, vocabulary: Vocabulary, matcher: Matcher, params: SamplingParams) -> None:
        assert params.structured_outputs is not None
        thinking = params.structured_outputs.thinking
        self._vocabulary = vocabulary
        self._matcher: Matcher | None = matcher  # None: the text has begun to think
        self._fresh = matcher if thinking is None else matcher.copy()
        self._opening = b"" if thinking is None or thinking.opened else thinking.opening.encode()  # what is left of it, if it may come
        self._closing = b"" if thinking is None else thinking.closing.encode()
        self._thought = b""  # its last bytes
        self._thinking = thinking is not None and thinking.opened
        self._hidden = params.eos_token_ids if params.ignore_eos else ()

    @property
    def ended(self) -> bool:
        """Nothing but the end of the text can follow."""
        return not self._thinking and not self._opening and self._matcher is not None and self._matcher.ended

    def mask(self) -> bytes | None:
        """The tokens that may come next, a bit for each; None: any. Raises `GrammarError`."""
        if self._thinking:
            return None
        bits = b"" if self._matcher is None else self._without_end(self._matcher.mask())
        if not self._opening:
            return bits
        opening = self._vocabulary.spelling(self._opening)
        return bytes(a | b for a, b in zip(bits, opening)) if bits else opening

    def advance(self, token_ids: Iterable[int]) -> None:
        """Raises `GrammarError` for a token that may not come."""
        for token_id in token_ids:
            if self._thinking:
                self._think(self._vocabulary.token_bytes(token_id))
            elif self._opening:
                self._choose(token_id)
            else:
                assert self._matcher is not None
                self._matcher.consume(token_id)

    def _without_end(self, bits: bytes) -> bytes:
        """With `ignore_eos` the text goes on as long as it can."""
        if not self._hidden:
            return bits
        rest = bytearray(bits)
        for token_id in self._hidden:
            rest[token_id // 8] &= ~(1 << token_id % 8)
        return bytes(rest) if any(rest) else bits

    def _choose(self, token_id: int) -> None:
        """It is not certain yet whether the text begins to think."""
        data = self._vocabulary.token_bytes(token_id)
        if self._matcher is not None and self._matcher.allows(token_id):
            self._matcher.consume(token_id)
        else:
            self._matcher = None
        if data.startswith(self._opening):
            rest, self._opening, self._thinking, self._matcher = data[len(self._opening) :], b"", True, None
            self._think(rest)
        else:
            self._opening = self._opening[len(data) :] if data and self._opening.startswith(data) else b""
        if self._matcher is None and not self._opening and not self._thinking:
            raise GrammarError("a token came that the constraint does not allow")

    def _think(self, data: bytes) -> None:
        self._thought += data
        end = self._thought.find(self._closing)
        if end < 0:
            self._thought = self._thought[-len(self._closing) :]
            return
        rest = self._thought[end + len(self._closing) :].strip()
        self._thinking, self._thought, self._matcher = False, b"", self._fresh
        for token_id in self._vocabulary.encode(rest) if rest else ():
            self._matcher.consume(token_id)


