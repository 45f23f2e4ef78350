"""Tokenisers rebuilt from GGUF metadata, against ones built from the same vocabulary the way models' tokenizer.json files are."""

import random

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, pre_tokenizers

from octavo.models.checkpoint import open_checkpoint
from octavo.text.gguf_tokenizer import rebuild_tokenizer
from octavo.text.tokenizer import TokenizerError

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
