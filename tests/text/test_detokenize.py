from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.text.detokenize import Detokenizer, complete_text
from octavo.text.logprobs import decode_position
from octavo.types import TokenLogprobs
from tests.scripted_engine import BOS, EOS, PieceTokenizer


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=5).filter(lambda piece: piece not in (b"<s>", b"</s>")), max_size=12))
def test_joined_pieces_are_the_decoded_whole(pieces: list[bytes]) -> None:
    tokenizer = PieceTokenizer()
    ids = [tokenizer.token(piece) for piece in pieces]
    detokenizer = Detokenizer(tokenizer)
    text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    assert text == b"".join(pieces).decode("utf-8", "replace")


@settings(deadline=None)
@given(st.text(max_size=12), st.text(max_size=12), st.integers(0, 60))
def test_a_prompt_that_ends_inside_a_character_never_comes_back(prompt: str, answer: str, at: int) -> None:
    tokenizer = PieceTokenizer()
    ids = list((prompt + answer).encode())
    context, rest = ids[:at], ids[at:]
    detokenizer = Detokenizer(tokenizer, context=context)
    new = "".join(map(detokenizer.push, rest)) + detokenizer.flush()
    assert complete_text(tokenizer, context) + new == prompt + answer


def test_incomplete_characters_are_held_back() -> None:
    tokenizer = PieceTokenizer()
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert detokenizer.push(0xF0) == ""
    assert detokenizer.pending == b"\xf0"
    assert detokenizer.flush() == "�"


def test_special_tokens_are_left_out_or_shown() -> None:
    tokenizer = PieceTokenizer()
    ids = [BOS, *b"hi", EOS]
    assert complete_text(tokenizer, ids) == "hi"
    assert complete_text(tokenizer, ids, skip_special_tokens=False) == "<s>hi</s>"


def test_a_space_that_encoding_had_put_first_is_no_part_of_a_text() -> None:
    class Spacing(PieceTokenizer):
        strips_leading_space = True

    tokenizer = Spacing()
    ids = [BOS, tokenizer.token(" The"), tokenizer.token(" end")]
    assert complete_text(tokenizer, ids) == "The end"
    assert complete_text(tokenizer, ids, skip_special_tokens=False) == "<s> The end"
    assert "".join(map(Detokenizer(tokenizer, context=ids[:1]).push, ids[1:])) == " The end", "after a context it is a real one"


def test_alternatives_are_decoded_after_the_real_context_not_after_each_other() -> None:
    tokenizer = PieceTokenizer()
    quote = "\u2019".encode()
    entry = TokenLogprobs((quote[2], ord("x"), quote[1]), (-0.1, -0.2, -0.3), 1)
    position = decode_position(entry, tokenizer, pending=quote[:2])
    assert position[quote[2]].decoded_token == "\u2019"
    assert position[quote[1]].decoded_token == "\u2000", "not what it would be after the alternative before it"
    assert position[ord("x")].decoded_token == "�x"
    alone = decode_position(TokenLogprobs((quote[0],), (-0.1,), 1), tokenizer)
    assert alone[quote[0]].decoded_token == "�", "never empty"


def test_the_chosen_token_keeps_its_rank_and_comes_once() -> None:
    position = decode_position(TokenLogprobs((7, 5, 7), (-2.0, -1.0, -2.0), 2), None)
    assert list(position) == [7, 5]
    assert position[7].rank == 2
    assert position[5].rank == 1


def test_equals_the_library_on_a_trained_byte_level_vocabulary() -> None:
    core = Core(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    texts = ["The quick brown fox, naïve café — 日本語 🙂🙃", "don't  stop\n\tplease  🙂"] * 3
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))

    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(others)}

    class Trained(PieceTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return bytes(byte_of[letter] for letter in core.id_to_token(token_id))

    tokenizer = Trained()
    for text in texts[:2]:
        ids = core.encode(text).ids
        detokenizer = Detokenizer(tokenizer)
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == core.decode(ids) == text
