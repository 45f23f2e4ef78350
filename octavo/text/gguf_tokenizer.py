"""The tokeniser of a GGUF file, rebuilt from its metadata: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

The keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer. How a text is cut before BPE is named by
`tokenizer.ggml.pre`; the patterns here are those of the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from octavo.text.tokenizer import Tokenizer, TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
PREFIX = "tokenizer.ggml."

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
CASED_WORDS = (CASED + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+", CASED + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*")
CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Tokens that end a turn or a text in the models that have them. Few files name all of theirs (tokenizer.ggml.eot_token_id).
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>")


@dataclass(frozen=True)
class Cut:
    """How a text is cut into words before BPE: by each pattern in turn."""

    patterns: tuple[str, ...]
    whole_words_first: bool = False  # a word that is a token itself is taken whole, whatever the merges say
    composes: bool = False  # letters and their accents are joined first (Unicode's NFC)
    adds_bos: bool = False  # where the file does not say


def _cuts() -> dict[str, Cut]:
    digits = Cut((r"\p{N}", GPT2))
    three = "|".join((CONTRACTIONS, WORDS, r"\p{N}{1,3}", REST))
    one = "|".join((CONTRACTIONS, WORDS, r"\p{N}", REST))
    llama3 = Cut((three,), whole_words_first=True, adds_bos=True)
    gpt4o = Cut(("|".join((*(words + CONTRACTIONS + "?" for words in CASED_WORDS), r"\p{N}{1,3}", CASED_REST)),))
    tekken = Cut(("|".join((*CASED_WORDS, r"\p{N}", CASED_REST)),), whole_words_first=True, adds_bos=True)
    groups = {
        Cut((GPT2,)): "gpt-2 mpt olmo jais phi-2 jina-es jina-de gigachat a.x-4.0 mellum exaone4 trillion granite-docling",
        digits: "smollm starcoder refact command-r codeshell exaone minerva-7b",
        llama3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0",
        Cut((three,)): "dbrx smaug-bpe glm4 chatglm-bpe",
        Cut((one,)): "deepseek-r1-qwen stablelm2 megrez hunyuan grok-2",
        Cut((one,), composes=True): "qwen2",
        gpt4o: "gpt-4o llama4 kanana2",
        tekken: "tekken",
    }
    return {name: cut for cut, names in groups.items() for name in names.split()}


CUTS: Mapping[str, Cut] = _cuts()


def rebuild_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokeniser that the metadata of a GGUF file describes. Raises `TokenizerError` for kinds that are not known."""
    vocabulary = _Vocabulary(metadata)
    kind = vocabulary.name("model", "")
    if kind == "gpt2":
        core, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        core, adds_bos = _sentence_piece(vocabulary), True
    else:
        raise TokenizerError(f"tokenizer.ggml.model = {kind!r} is not supported; supported: 'gpt2', 'llama'")
    # In order of ids, which is the order in which a tokeniser numbers those that are not in its vocabulary.
    kinds = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}  # -> whether decoding may leave it out
    listed = zip(vocabulary.texts, vocabulary.types)
    core.add_tokens([AddedToken(text, special=kinds[kind], normalized=False) for text, kind in listed if text and kind in kinds])
    bos, eos = vocabulary.token_id("bos"), vocabulary.token_id("eos")
    _set_ends(
        core,
        bos if metadata.get(PREFIX + "add_bos_token", adds_bos) else None,
        eos if metadata.get(PREFIX + "add_eos_token", False) else None,
    )
    return Tokenizer(
        core,
        bos_token_id=bos,
        eos_token_id=eos,
        pad_token_id=vocabulary.token_id("padding"),
        extra_eos_token_ids=vocabulary.ends(),
        chat_templates=_chat_templates(metadata),
    )


class _Vocabulary:
    """The token lists of the metadata, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.texts: list[str] = self._list("tokens", str)
        if not self.texts:
            raise TokenizerError("the file holds no tokeniser (tokenizer.ggml.tokens is missing); name one with --tokenizer")
        self.types: list[int] = self._numbers("token_type") if PREFIX + "token_type" in metadata else [NORMAL] * len(self.texts)
        # A text that stands twice keeps its first id; unused ids fill up the embedding and have no text.
        self.ids: dict[str, int] = {}
        for number, (text, kind) in enumerate(zip(self.texts, self.types)):
            if kind != UNUSED:
                self.ids.setdefault(text, number)

    def _list(self, name: str, entry: type) -> list[Any]:
        found = self.metadata.get(PREFIX + name, [])
        values: list[Any] = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
        if any(not isinstance(value, entry) for value in values) or isinstance(found, str):
            raise TokenizerError(f"tokenizer.ggml.{name} is not a list of texts")
        return values

    def name(self, name: str, default: str) -> str:
        value = self.metadata.get(PREFIX + name, default)
        if not isinstance(value, str):
            raise TokenizerError(f"tokenizer.ggml.{name} is not a text but {type(value).__name__}")
        return value

    def _numbers(self, name: str) -> list[Any]:
        """One number a token."""
        values = self.metadata.get(PREFIX + name)
        if not isinstance(values, np.ndarray) or len(values) != len(self.texts):
            raise TokenizerError(f"tokenizer.ggml.{name} must hold {len(self.texts)} numbers, one a token")
        return values.tolist()

    def merges(self) -> list[tuple[str, str]]:
        """The merge rules in order. Each is written as two texts with a space between; the first text may itself begin with one."""
        pairs: list[tuple[str, str]] = []
        for rule in self._list("merges", str):
            left, space, right = rule[1:].partition(" ")
            if not space or not right:
                raise TokenizerError(f"tokenizer.ggml.merges: {rule!r} is not two texts with a space between")
            pairs.append((rule[0] + left, right))
        return pairs

    def scores(self) -> list[float]:
        return self._numbers("scores")

    def token_id(self, name: str) -> int | None:
        number = self.metadata.get(f"{PREFIX}{name}_token_id")
        return int(number) if isinstance(number, int) and number < len(self.texts) else None

    def ends(self) -> list[int]:
        """Ids that end a turn or a text: those that the file names, and those with well-known texts."""
        told = [number for name in ("eot", "eom") if (number := self.token_id(name)) is not None]
        known = [self.ids[text] for text in ENDS if text in self.ids and self.types[self.ids[text]] in (CONTROL, USER_DEFINED)]
        return list(dict.fromkeys((*told, *known)))


def _byte_level(vocabulary: _Vocabulary) -> tuple[Core, bool]:
    name = vocabulary.name("pre", "gpt-2")
    cut = CUTS.get(name)
    if cut is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre = {name!r} is not supported; name a folder with the model's tokenizer.json with --tokenizer. "
            f"Supported: {', '.join(sorted(CUTS))}"
        )
    merges = vocabulary.merges()
    try:
        core = Core(models.BPE(vocabulary.ids, merges, ignore_merges=cut.whole_words_first))
    except Exception as error:  # the library raises bare Exception: a merge of tokens that are not there
        raise TokenizerError(f"tokenizer.ggml.merges: {error}") from error
    if cut.composes:
        core.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    core.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    return core, cut.adds_bos


def _sentence_piece(vocabulary: _Vocabulary) -> Core:
    """SentencePiece's BPE joins the neighbours whose joined text scores highest, so the merges follow from the scores."""
    scores, ids = vocabulary.scores(), vocabulary.ids
    made = sorted((-scores[number], number, text) for text, number in ids.items() if vocabulary.types[number] == NORMAL)
    merges = [
        (text[:at], text[at:]) for _, _, text in made for at in range(1, len(text)) if text[:at] in ids and text[at:] in ids
    ]
    unknown = next((text for text, kind in zip(vocabulary.texts, vocabulary.types) if kind == UNKNOWN), None)
    core = Core(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    adds_space = bool(vocabulary.metadata.get(PREFIX + "add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if adds_space else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Strip(" ", 1, 0)] if adds_space else []
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *undo])
    return core


def _set_ends(core: Core, bos: int | None, eos: int | None) -> None:
    """Let `encode` put these tokens, and no others, before and after a text."""
    first = [] if bos is None else [(core.id_to_token(bos), bos)]
    last = [] if eos is None else [(core.id_to_token(eos), eos)]
    single = [*(text for text, _ in first), "$A", *(text for text, _ in last)]
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=list({*first, *last}))


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template."
    named = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    named["default"] = metadata.get("tokenizer.chat_template")
    return {name: value for name, value in named.items() if isinstance(value, str)}
