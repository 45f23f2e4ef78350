"""From token ids to text, one token at a time, at constant cost.

A token stands for bytes, and a text is its tokens' bytes read as UTF-8. So the only state is the few bytes of a character that is not
complete yet: they are held back until the character is whole, and text already given never changes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

LONGEST_CHARACTER_BYTES = 4  # in UTF-8


class Tokenizer(Protocol):
    """What the text core and the server need to know of a tokeniser; `octavo.text.tokenizer` has the real one."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def special_ids(self) -> AbstractSet[int]:
        """Ids of control tokens, which are no part of the text a reader sees."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text loses one space at its very start, which encoding had put there."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for; empty for an id without a token."""
        ...

    def token_texts(self, skip_special_tokens: bool) -> Sequence[str | None]:
        """The characters that these bytes are, by id; None where they begin or end inside a character. A model may have ids beyond."""
        ...


def whole_text(data: bytes) -> str | None:
    """The characters that the bytes are in UTF-8; None where they are none, or not all of one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Detokenizer:
    """The text of a growing list of tokens. `context` are the tokens before it: their text is never given again, but where they end
    inside a character, the bytes of its beginning count."""

    __slots__ = ("_decoder", "_skipped", "_tokenizer", "between", "texts")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self.texts = tokenizer.token_texts(skip_special_tokens)  # what `push` gives for each token, leaving nothing behind, while ...
        self._skipped: AbstractSet[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(_last_bytes(tokenizer, context))
        self.between = not self.pending  # ... the text does not end inside a character; so it need not be called then

    def foresee(self, token_id: int) -> str:
        """What `push` would give, whatever it is."""
        if token_id in self._skipped:
            return ""
        before = self._decoder.getstate()
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self._decoder.setstate(before)
        return text

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before."""
        if token_id in self._skipped:
            return ""
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        self.between = not self.pending
        return text

    def flush(self) -> str:
        """The end of the text: a replacement character where it ends inside a character."""
        return self._decoder.decode(b"", True)

    @property
    def pending(self) -> bytes:
        """The bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]


def pieces_of(tokenizer: Tokenizer, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> list[str]:
    """What each token adds to a text that begins with the first of them, up to the last complete character."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    if tokenizer.strips_leading_space:
        first = next((at for at, piece in enumerate(pieces) if piece), None)
        if first is not None:
            pieces[first] = pieces[first].removeprefix(" ")
    return pieces


def complete_text(tokenizer: Tokenizer, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    """The text of the tokens, up to their last complete character."""
    return "".join(pieces_of(tokenizer, token_ids, skip_special_tokens=skip_special_tokens))


def _last_bytes(tokenizer: Tokenizer, token_ids: Sequence[int]) -> bytes:
    """Enough bytes from the end of the tokens to hold any incomplete last character whole."""
    last = b""
    for token_id in reversed(token_ids):
        last = tokenizer.token_bytes(token_id) + last
        if len(last) >= LONGEST_CHARACTER_BYTES:
            break
    return last
