"""Tokenisers rebuilt from GGUF metadata, against ones built from the same vocabulary the way models' tokenizer.json files are."""

import random
import re
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, pre_tokenizers

from octavo.models.checkpoint import open_checkpoint
from octavo.text.gguf_tokenizer import CUTS, rebuild_tokenizer
from octavo.text.tokenizer import LETTERS, TokenizerError

TEXTS = [
    "", " ", "   ", "\n", "\n\n\n", " \n \t x", "Hello, world!", "The capital of France is", " leading and trailing ", "a  b   c    d",
    "I'm you're he'll WE'VE don't",
    "12345 3.14159 1e-7 ½ ² Ⅷ ٣٤", "naïve café Ünïcödé ß ﬁ", "日本語のテキスト 中文 한국어", "مرحبا بالعالم שלום",
    "😀 👩‍👩‍👧‍👦 🇫🇷 e\u0301 \u200b\u00a0\ufeff", "def f(x):\n    return x ** 2  # square\n\n\tif y:\r\n\t\tpass\r\n", "a\x00b\x7f\x1b[0m",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "x<|im_end|>y", "<|im_end", "<s>not special</s>", "\ud7ff\ue000\U0010ffff",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    alphabet = [*"abcXYZ019 \n\t'.,;!?_-éß日本😀\u0301\u00a0", "  ", "\r\n", "'s", "<|im_start|>", "<|im_end|>"]
    return ["".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def smollm():
    return open_checkpoint("smollm2-135m").tokenizer()


@pytest.fixture(scope="module")
def reference(smollm):
    """SmolLM2's own recipe: digits one by one, then GPT-2's pattern as the library has it built in."""
    core = Core(smollm.core.model)
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([token for token in smollm.added.values() if token.special])
    return core


def test_smollm_encodes_as_its_own_recipe(smollm, reference):
    for text in TEXTS + random_texts(400):
        assert smollm.encode(text) == reference.encode(text).ids, text


def test_smollm_decodes_to_the_text_it_encoded(smollm):
    for text in TEXTS + random_texts(400):
        ids = smollm.encode(text)
        assert smollm.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(smollm.token_bytes, ids)).decode() == text


def test_every_token_of_smollm_has_its_bytes(smollm):
    assert smollm.vocab_size == 49152
    assert all(smollm.token_bytes(number) for number in range(smollm.vocab_size))
    assert smollm.token_bytes(smollm.vocab_size) == smollm.token_bytes(-1) == b""


def test_special_tokens_of_smollm(smollm):
    assert smollm.token_bytes(2) == b"<|im_end|>"
    assert (smollm.eos_token_id, smollm.bos_token_id, smollm.num_added) == (2, 1, 0)
    assert smollm.eos_token_ids[0] == 2
    assert {0, 1, 2} <= smollm.special_ids
    assert smollm.decode([1, 19556, 2]) == "Hello"
    assert "<|im_start|>" in smollm.chat_template


def test_an_unknown_cut_or_model_is_refused_by_name():
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "no-such-cut", "tokenizer.ggml.tokens": ["a"]}
    with pytest.raises(TokenizerError, match=r"no-such-cut.*--tokenizer"):
        rebuild_tokenizer(metadata)
    with pytest.raises(TokenizerError, match="'bert' is not supported"):
        rebuild_tokenizer({**metadata, "tokenizer.ggml.model": "bert"})
    with pytest.raises(TokenizerError, match="holds no tokeniser"):
        rebuild_tokenizer({"tokenizer.ggml.model": "gpt2"})


def byte_vocabulary(pre: str, *words: str, merges: list[str], **more) -> dict:
    """Metadata of a byte-level tokeniser: all bytes, the results of the merges, then the words given, the last of them control tokens."""
    letters = list(LETTERS)
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*letters, *made, *words]
    types = [1] * (len(letters) + len(made)) + [3] * len(words)
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32), "tokenizer.ggml.merges": merges, **more,
    }  # fmt: skip


def pieces(metadata: dict, text: str) -> list[bytes]:
    tokenizer = rebuild_tokenizer(metadata)
    return [tokenizer.token_bytes(number) for number in tokenizer.encode(text)]


@pytest.mark.parametrize("pre", CUTS)
def test_every_cut_keeps_every_byte(pre):
    tokenizer = rebuild_tokenizer(byte_vocabulary(pre, "<|end|>", merges=["a b", "Ġ a", "1 2", "Ġa b"]))
    for text in TEXTS + random_texts(50):
        expected = unicodedata.normalize("NFC", text) if CUTS[pre].composes else text
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == expected


def test_cuts_differ_where_the_models_do():
    """Merges join what a cut leaves together: digits, words with a leading mark, line ends after marks."""
    merges = ["1 2", "12 3", "123 4", "( a", "! Ċ"]
    assert pieces(byte_vocabulary("gpt-2", merges=merges), "1234") == [b"1234"]
    assert pieces(byte_vocabulary("smollm", merges=merges), "1234") == [b"1", b"2", b"3", b"4"]
    assert pieces(byte_vocabulary("llama-bpe", merges=merges), "1234") == [b"123", b"4"]
    assert pieces(byte_vocabulary("qwen2", merges=merges), "1234") == [b"1", b"2", b"3", b"4"]
    assert pieces(byte_vocabulary("gpt-2", merges=merges), "(a!\n") == [b"(", b"a", b"!", b"\n"]
    assert pieces(byte_vocabulary("llama-bpe", merges=merges), "(a!\n") == [b"(a", b"!\n"]


def test_llama3_takes_a_whole_word_that_no_merge_makes():
    for pre, expected in (("llama-bpe", [b"xyz"]), ("dbrx", [b"x", b"y", b"z"])):
        metadata = byte_vocabulary(pre, merges=[])
        metadata["tokenizer.ggml.tokens"].append("xyz")
        metadata["tokenizer.ggml.token_type"] = np.ones(257, np.int32)
        assert pieces(metadata, "xyz") == expected


@pytest.mark.parametrize(
    ("pre", "flags", "ends"),
    [("gpt-2", {}, ([], [])), ("llama-bpe", {}, (["<b>"], [])), ("llama-bpe", {"add_bos_token": False}, ([], [])),
     ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (["<b>"], ["<e>"]))],
)  # fmt: skip
def test_the_flags_for_begin_and_end_are_kept(pre, flags, ends):
    flags = {f"tokenizer.ggml.{name}": value for name, value in flags.items()}
    ids = {"tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257}
    tokenizer = rebuild_tokenizer(byte_vocabulary(pre, "<b>", "<e>", merges=[], **flags, **ids))
    first, last = ends
    assert [tokenizer.id_to_token(number) for number in tokenizer.encode("a")] == [*first, "a", *last]
    assert [tokenizer.id_to_token(number) for number in tokenizer.encode("a", add_special_tokens=False)] == ["a"]
    assert tokenizer.num_added == len(first) + len(last)


def test_end_ids_are_those_of_the_file_and_the_well_known_ones():
    metadata = byte_vocabulary("llama-bpe", "<|eot_id|>", "<|other|>", "<stop>", "<|end_of_text|>", merges=[])
    metadata |= {"tokenizer.ggml.eos_token_id": 256, "tokenizer.ggml.eot_token_id": 258}
    assert rebuild_tokenizer(metadata).eos_token_ids == (256, 258, 259)


def test_templates_are_found_by_name():
    metadata = byte_vocabulary("gpt-2", merges=[])
    metadata |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    metadata |= {"tokenizer.chat_templates": ["tool_use"]}
    tokenizer = rebuild_tokenizer(metadata)
    assert tokenizer.chat_template == "plain"
    assert tokenizer.chat_templates == {"default": "plain", "tool_use": "tools"}


def sentence_vocabulary(seed: int, adds_space: bool) -> dict:
    """A made-up SentencePiece vocabulary: bytes, letters, and pieces that grow from pairs of earlier ones, scored in that order."""
    rng, pieces = random.Random(seed), ["▁", *"abcde!éß"]
    base = len(pieces)
    while len(pieces) < 60:
        joined = rng.choice(pieces) + rng.choice(pieces)
        if joined not in pieces and len(joined) < 7:
            pieces.append(joined)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "\n\n", "<tag>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 4]
    order = [-1e6] * base + [-float(rank) for rank in range(len(pieces) - base)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": np.array([0.0] * 259 + order + [0.0, 0.0], np.float32), "tokenizer.ggml.add_space_prefix": adds_space,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip


def sentence_pieces(metadata: dict, text: str) -> list[str]:
    """SentencePiece's BPE, spelled out: again and again the neighbours whose joined text scores highest, the leftmost of equals."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    scores = {text: score for text, score, kind in zip(tokens, metadata["tokenizer.ggml.scores"], types) if kind == 1}
    found = []
    for part in re.split("(\n\n|<tag>)", text):
        if part in ("\n\n", "<tag>"):
            found.append(part)
            continue
        prefix = "▁" if part and metadata["tokenizer.ggml.add_space_prefix"] else ""
        symbols = list(prefix + part.replace(" ", "▁"))
        while True:
            joined = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
            if not joined:
                break
            at = -max(joined)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            found += [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return found


@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_sentencepiece_vocabularies_encode_by_score(seed, adds_space):
    metadata, rng = sentence_vocabulary(seed, adds_space), random.Random(seed)
    tokenizer = rebuild_tokenizer(metadata)
    for _ in range(100):
        text = "".join(rng.choices([*"aabbccdde!éß  ", "日", "😀", "\n", "\n\n", "<tag>"], k=rng.randint(0, 25)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [tokenizer.id_to_token(number) for number in ids] == sentence_pieces(metadata, text)
        assert tokenizer.encode(text) == [1, *ids]


def test_sentencepiece_tokens_add_up_to_the_text():
    tokenizer = rebuild_tokenizer(sentence_vocabulary(0, adds_space=True))
    ids = tokenizer.encode("ab 日 é", add_special_tokens=False)
    assert tokenizer.strips_leading_space
    assert tokenizer.decode(ids) == "ab 日 é"
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == " ab 日 é"
    assert tokenizer.token_bytes(3 + 0xE6) == b"\xe6"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("token_type", np.ones(3, np.int32), "token_type must hold 256 numbers"), ("token_type", 7, "token_type must hold 256 numbers"),
     ("merges", [1], "not a list of texts"), ("tokens", "abc", "not a list of texts"), ("merges", ["Q Qz"], "Qz"),
     ("merges", ["ab"], "'ab' is not two"), ("merges", [""], "is not two"), ("merges", ["a "], "is not two")],
)  # fmt: skip
def test_damaged_vocabularies_are_refused(name, value, said):
    with pytest.raises(TokenizerError, match=said):
        rebuild_tokenizer(byte_vocabulary("gpt-2", merges=[]) | {f"tokenizer.ggml.{name}": value})
