"""The tokeniser: text to token ids and back, and the exact bytes of each token. Wraps the `tokenizers` library; no transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Core

from octavo import env
from octavo.text.detokenize import whole_text
from octavo.text.fast_tokens import fast_encode

LONG_CHARACTERS = 4_000
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenizerError(ValueError):
    """A tokeniser's files are missing or damaged, or of a kind that is not supported."""


def byte_letters() -> dict[str, int]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


LETTERS = byte_letters()
LETTER_OF_SPACE = "\u0120"


class Tokenizer:
    """Ids and texts of one model. Immutable; encode and decode may be called from several threads.

    `chat_template` is the template used when none is asked for, `chat_templates` all of them by name.
    """

    def __init__(
        self,
        core: Core,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        extra_eos_token_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self.core = core
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.chat_templates = dict(chat_templates or {})
        first = () if eos_token_id is None else (eos_token_id,)
        self.eos_token_ids = tuple(dict.fromkeys((*first, *extra_eos_token_ids)))  # ids that end a text, the main one first
        self.added = core.get_added_tokens_decoder()  # id -> AddedToken
        self.special_ids = frozenset(number for number, token in self.added.items() if token.special)
        self._encode = fast_encode(core) if env.USE_FASTOKENS.get() else None
        self.num_added = core.num_special_tokens_to_add(False)  # special tokens that `encode` puts around a text

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if self._encode is not None:
            return self._encode(text, add_special_tokens)
        if len(text) > LONG_CHARACTERS:  # which lets other threads run meanwhile
            return self.core.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return self.core.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Like `encode`, over all processor cores."""
        return [found.ids for found in self.core.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.core.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that has none."""
        return self.core.id_to_token(token_id) if token_id >= 0 else None

    def token_to_id(self, token: str) -> int | None:
        return self.core.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id without a token.

        Their concatenation is the UTF-8 of the decoded text, but for the one leading space that `strips_leading_space` speaks of.
        """
        if not 0 <= token_id < len(self._texts):
            return b""
        text = self._texts[token_id]
        return self._parts[token_id] if text is None else text.encode()

    def token_texts(self, skip_special_tokens: bool) -> tuple[str | None, ...]:
        """The characters that each token's bytes are; None where they begin or end inside a character."""
        return self._shown if skip_special_tokens else self._texts

    @cached_property
    def _texts(self) -> tuple[str | None, ...]:
        """Of all tokens at once, for streams ask for every token: kept as they come, they would let a server grow until all have come."""
        return tuple(self._work_out_text(token_id, token) for token_id, token in enumerate(self._tokens()))

    def _tokens(self) -> list[str | None]:
        """As the vocabulary spells them, by id."""
        count = self.core.get_vocab_size(with_added_tokens=True)
        tokens = list(map(self.core.id_to_token, range(count)))
        if None not in tokens:  # no id is left out, so there are none beyond; asking for the whole vocabulary takes four times as long
            return tokens
        highest = max(self.core.get_vocab(with_added_tokens=True).values())
        return list(map(self.core.id_to_token, range(highest + 1)))

    def _work_out_text(self, token_id: int, token: str | None) -> str | None:
        if self._byte_level and token is not None and " " not in token:
            plain = token.replace(LETTER_OF_SPACE, " ")
            if plain.isascii() and token_id not in self.added:  # its other letters stand for themselves: most tokens, and soon done
                return plain
        return whole_text(self._work_out_bytes(token_id))

    @cached_property
    def _shown(self) -> tuple[str | None, ...]:
        return tuple("" if token_id in self.special_ids else text for token_id, text in enumerate(self._texts))

    @cached_property
    def _parts(self) -> dict[int, bytes]:
        """The bytes that are not whole characters."""
        return {token_id: self._work_out_bytes(token_id) for token_id, text in enumerate(self._texts) if text is None}

    def _work_out_bytes(self, token_id: int) -> bytes:
        token = self.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self.added:
            return self.added[token_id].content.encode()
        if self._byte_level:
            try:
                return bytes(map(LETTERS.__getitem__, token))
            except KeyError:  # it is no token of bytes
                return token.encode()
        if self._byte_fallback and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace("▁", " ").encode() if self._spaces_as_blocks else token.encode()

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. A model's embedding may have more rows, or fewer."""
        return len(self._texts)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The texts of the named special tokens that the model has, under the names that chat templates use."""
        ids = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id, "pad_token": self.pad_token_id}
        texts = {name: self.id_to_token(token_id) for name, token_id in ids.items() if token_id is not None}
        return {name: text for name, text in texts.items() if text is not None}

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    @cached_property
    def _decoder(self) -> str:
        """The decoding steps as JSON text."""
        return "" if self.core.decoder is None else self.core.decoder.__getstate__().decode()

    @cached_property
    def _byte_level(self) -> bool:
        return '"ByteLevel"' in self._decoder

    @cached_property
    def _byte_fallback(self) -> bool:
        return '"ByteFallback"' in self._decoder

    @cached_property
    def _spaces_as_blocks(self) -> bool:
        return "▁" in self._decoder or '"Metaspace"' in self._decoder

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text loses one space at its very start, which encoding had put there."""
        return self._strips_leading_space

    @cached_property
    def _strips_leading_space(self) -> bool:
        """Whether decoding drops one space at the very start of a text, which encoding had put there."""
        return '"Strip"' in self._decoder or ('"Metaspace"' in self._decoder and '"never"' not in self._decoder)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokeniser of a model folder: tokenizer.json, with what its sibling files say. Raises `TokenizerError`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"{folder}: there is no tokenizer.json; name another folder or model with --tokenizer")
    try:
        core = Core.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: cannot be read: {error}") from error
    core.no_truncation()
    core.no_padding()
    settings = read_json(folder / "tokenizer_config.json")
    legacy = read_json(folder / "special_tokens_map.json")

    def token_id(name: str) -> int | None:
        token = settings.get(name) or legacy.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return core.token_to_id(token) if isinstance(token, str) else None

    _add_tokens(core, settings.get("added_tokens_decoder"))
    # add_bos_token and add_eos_token are for classes that build a tokeniser; tokenizer.json itself says what goes around a text.
    return Tokenizer(
        core,
        bos_token_id=token_id("bos_token"),
        eos_token_id=token_id("eos_token"),
        pad_token_id=token_id("pad_token"),
        chat_templates=_chat_templates(folder, settings),
    )


def _add_tokens(core: Core, listed: Any) -> None:
    """Tokens that only tokenizer_config.json knows of, or knows to be special."""
    entries = sorted(listed.items(), key=lambda entry: int(entry[0])) if isinstance(listed, dict) else []
    known = core.get_added_tokens_decoder()
    for number, entry in entries:
        special, old = bool(entry.get("special")), known.get(int(number))
        if old is None or old.special != special:
            flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            core.add_tokens([AddedToken(entry["content"], special=special, **flags)])


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. Files beside the tokeniser win over the field in its config."""
    field = settings.get("chat_template")
    named = {"default": field} if isinstance(field, str) else {}
    if isinstance(field, list):
        named = {entry["name"]: entry["template"] for entry in field if isinstance(entry, dict) and {"name", "template"} <= entry.keys()}
    more = read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(more, str):
        named["default"] = more
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = path.read_text("utf-8")
    if (path := folder / "chat_template.jinja").is_file():
        named["default"] = path.read_text("utf-8")
    return named


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty where there is no such file. Raises `TokenizerError` for anything else in it."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value
