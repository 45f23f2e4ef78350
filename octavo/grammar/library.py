"""Grammars and the tokens that they allow next: the one file that knows llguidance, which walks the vocabulary as a tree of bytes beside
an Earley parser (docs/notes/structured_outputs.md says why this library)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from octavo.text.detokenize import Tokenizer
from octavo.types import InvalidRequest, StructuredOutputs

MAX_CHARACTERS = 262_144  # of a constraint as text
MAX_CHOICES = 10_000
MAX_SPACES = 8  # in a run between the parts of a JSON text: a model that likes spaces must not write them for ever
INSTALL = "the package llguidance is missing: pip install octavo[serve], or pip install llguidance"


class GrammarError(RuntimeError):
    """A constraint cannot be followed any further. Whoever asked ends its text; nothing is ever sampled without the constraint."""


def grammar_of(constraint: StructuredOutputs) -> str:
    """The constraint in llguidance's form. Raises `InvalidRequest` for what is no schema, no list or too large."""
    kind, value = constraint.kind, constraint.value
    library = _library()
    try:
        match kind:
            case "json":
                return library.LLMatcher.grammar_from_json_schema(_schema(value), overrides=_json_options(constraint))
            case "json_object":
                return library.LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=_json_options(constraint))
            case "regex":
                return library.LLMatcher.grammar_from_regex(_sized(kind, value))
            case "choice":
                return library.LLMatcher.grammar_from_lark(_choices(value))
            case _:
                return library.LLMatcher.grammar_from_lark(_lark(_sized(kind, value)))
    except ValueError as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest(f"structured_outputs.{kind}", value, _first_line(str(error))) from None


def check(constraint: StructuredOutputs) -> None:
    """Raise `InvalidRequest`, with the reason, for a constraint that cannot be compiled or that no text can fulfil."""
    if reason := _complaint(grammar_of(constraint)):
        raise InvalidRequest(f"structured_outputs.{constraint.kind}", constraint.value, reason)


@lru_cache(maxsize=64)
def _complaint(grammar: str) -> str:
    """What is wrong with a grammar, tried on a vocabulary of single bytes; empty if nothing is."""
    matcher = _library().LLMatcher(_bytes_vocabulary(), grammar, log_level=0)
    if not matcher.is_error():
        bits = matcher.compute_bitmask()
        if not matcher.is_error():
            return "" if any(bits) else "no text can fulfil it"
    return _first_line(matcher.get_error())


class Vocabulary:
    """The tokens of a model, as grammars see them. Making one takes a moment and some memory; matchers share it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self.token_bytes = tokenizer.token_bytes
        self._tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self._special = sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size)
        self._spellings: dict[bytes, bytes] = {}
        self._core = _llguidance_tokenizer(
            self._tokens, self._special, sorted({token_id for token_id in eos_token_ids if token_id < vocab_size}), tokenizer.encode
        )

    def matcher(self, grammar: str) -> Matcher:
        """At the beginning of a text. Raises `GrammarError`."""
        core = _library().LLMatcher(self._core, grammar, log_level=0)
        if core.is_error():
            raise GrammarError(_first_line(core.get_error()))
        return Matcher(core)

    def encode(self, data: bytes) -> list[int]:
        return self._core.tokenize_bytes(data)

    def spelling(self, text: bytes) -> bytes:
        """The mask of the tokens that begin `text`, or go beyond it."""
        if text not in self._spellings:
            bits = bytearray((len(self._tokens) + 31) // 32 * 4)
            for token_id, data in enumerate(self._tokens):
                if data and (text.startswith(data) or data.startswith(text)):
                    bits[token_id // 8] |= 1 << token_id % 8
            self._spellings[text] = bytes(bits)
        return self._spellings[text]


class Matcher:
    """Where one text stands in a grammar."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def copy(self) -> Matcher:
        return Matcher(self._core.deep_copy())

    @property
    def ended(self) -> bool:
        """Nothing but the end of the text can follow."""
        return self._core.is_stopped()

    def mask(self) -> bytes:
        """A bit for each token, packed in words of 32, the lowest first: whether it may come next. Raises `GrammarError`."""
        bits = self._core.compute_bitmask()
        if self._core.is_error():  # and the mask would let the text end
            raise GrammarError(_first_line(self._core.get_error()))
        return bits

    def allows(self, token_id: int) -> bool:
        return self._core.validate_tokens([token_id]) == 1

    def consume(self, token_id: int) -> None:
        """The text goes on with this token. Raises `GrammarError` where it may not."""
        if not self._core.consume_token(token_id):
            raise GrammarError(_first_line(self._core.get_error()))


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InvalidRequest("structured_outputs", "a constraint", INSTALL) from None
    return llguidance


@lru_cache(maxsize=1)
def _bytes_vocabulary() -> Any:
    return _llguidance_tokenizer([bytes([byte]) for byte in range(256)] + [b"</s>"], [256], [256], None)


def _llguidance_tokenizer(tokens: list[bytes], special: list[int], eos: list[int], encode: Any) -> Any:
    from llguidance._tokenizer import TokenizerWrapper

    class Tokens:
        """What the library asks of a tokeniser."""

        eos_token_id = eos[0] if eos else 0
        bos_token_id = None

        def __init__(self) -> None:
            self.tokens, self.special_token_ids = tokens, special

        def __call__(self, text: bytes | str) -> list[int]:
            data = text.encode() if isinstance(text, str) else text
            return list(data) if encode is None else encode(data.decode("utf-8", "replace"), False)

    return _library().LLTokenizer(TokenizerWrapper(Tokens()), n_vocab=len(tokens), eos_token=eos or [0])


def _json_options(constraint: StructuredOutputs) -> dict[str, Any]:
    if constraint.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": constraint.whitespace_pattern or rf"[\x20\x0A\x0D\x09]{{1,{MAX_SPACES}}}"}


def _schema(value: str | dict[str, Any]) -> str:
    if isinstance(value, str):
        schema = json.loads(_sized("json", value))
        if not isinstance(schema, (dict, bool)):
            raise InvalidRequest("structured_outputs.json", value, "a JSON schema is an object")
        return value
    return _sized("json", json.dumps(value))


def _choices(values: list[str]) -> str:
    if len(values) > MAX_CHOICES or any(not isinstance(value, str) or not value for value in values):
        raise InvalidRequest("structured_outputs.choice", values, f"give up to {MAX_CHOICES} texts of at least one character")
    return _sized("choice", "start: " + " | ".join(json.dumps(value, ensure_ascii=False) for value in values))


def _lark(text: str) -> str:
    """Lark's form as it is; GBNF (`root ::= ...`), the form of llama.cpp and xgrammar, put into it."""
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # of a class of its own, or a bare one
        raise ValueError(str(error)) from None


def _sized(kind: str, text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(f"structured_outputs.{kind}", text, "a text is needed")
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequest(f"structured_outputs.{kind}", f"{len(text)} characters", f"at most {MAX_CHARACTERS}")
    return text


def _first_line(error: str) -> str:
    """The library adds its state, which is no reader's business."""
    return error.partition("<state>")[0].strip()[:500] or "it cannot be compiled"
