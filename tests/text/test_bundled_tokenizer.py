"""The text core on a real vocabulary: the bundled model's, with 49,152 byte-level tokens."""

import random
import threading
import time

import pytest

from octavo.models.checkpoint import open_checkpoint
from octavo.text.detokenize import Detokenizer, complete_text
from octavo.text.template import ChatTemplate
from octavo.text.tokenizer import Tokenizer

TEXTS = ["The quick brown fox", "naïve café — 日本語 🙂🙃👩‍👩‍👧", "  def f(x):\n\treturn x  \n\n", "don't\u2028stop \u200b now"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return open_checkpoint("smollm2-135m").tokenizer()


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_joined_pieces_equal_the_library_for_any_ids(tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
    draw = random.Random(0)
    for _ in range(500):
        ids = [draw.randrange(tokenizer.vocab_size) for _ in range(draw.randrange(1, 12))]
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_any_cut_between_prompt_and_answer_gives_the_text_once(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    for cut in range(len(ids) + 1):
        detokenizer = Detokenizer(tokenizer, context=ids[:cut])
        new = "".join(map(detokenizer.push, ids[cut:])) + detokenizer.flush()
        assert complete_text(tokenizer, ids[:cut]) + new == text


def test_the_bundled_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.chat_template is not None
    text = ChatTemplate(tokenizer.chat_template).render([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\n")


def test_a_long_text_has_the_same_tokens_and_lets_others_work_meanwhile(tokenizer: Tokenizer) -> None:
    text = "".join(TEXTS) * 2000
    ids: list[int] = []
    encoding = threading.Thread(target=lambda: ids.extend(tokenizer.encode(text)))
    encoding.start()
    num_turns = 0
    while encoding.is_alive():
        time.sleep(0)
        num_turns += 1
    assert num_turns > 100, "the interpreter was held"
    assert ids == tokenizer.core.encode(text).ids
