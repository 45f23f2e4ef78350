"""fastokens gives the ids of the usual library, or is not used."""

import importlib.metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import models

from octavo.models.checkpoint import open_checkpoint
from octavo.text import fast_tokens
from octavo.text.tokenizer import Tokenizer

PIECES = ["the ", "engine", " ", "\n", "\t", "1234", "é", "日本", "🙂", "'s", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "\u2028"]


@pytest.fixture(scope="module")
def usual() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer()


@pytest.fixture(scope="module")
def fast(usual: Tokenizer) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_FASTOKENS", "1")
        return Tokenizer(usual.core, eos_token_id=usual.eos_token_id)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=40).map("".join), st.booleans())
def test_ids_are_the_usual_ones(usual: Tokenizer, fast: Tokenizer, text: str, ends: bool) -> None:
    assert fast._encode is not None
    assert usual._encode is None
    assert fast.encode(text, ends) == usual.encode(text, ends)
    assert fast.encode(text * 500, ends) == usual.encode(text * 500, ends)


def test_where_it_is_missing_or_old_the_error_says_how_to_get_it(usual: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("OCTAVO_USE_FASTOKENS", "1")
    for version, said in ((missing, "pip install fastokens"), (lambda name: "0.1.9", "this is 0.1.9")):
        monkeypatch.setattr(fast_tokens, "version", version)
        with pytest.raises(ImportError, match=said):
            Tokenizer(usual.core)


def test_a_tokeniser_that_it_cannot_read_stays_with_the_usual_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OCTAVO_USE_FASTOKENS", "1")
    words = Tokenizer(Core(models.WordLevel({"a": 0, "?": 1}, unk_token="?")))
    assert words.encode("a") == [0]
    assert "fastokens is not used" in caplog.text
