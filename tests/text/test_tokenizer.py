import json

import pytest
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from octavo.models.checkpoint import open_checkpoint
from octavo.text.tokenizer import LETTERS, TokenizerError, read_tokenizer

TEXTS = ["", "hello hell low", " hello  low ", "<s>hello</s> low", "naïve 日本 😀\n\t x", "<|tool|>hello<|new|>"]


def byte_level_core() -> Core:
    """A byte-level tokeniser with a few merges, `<s>` and `</s>` as special tokens, and `<|tool|>` as a plain added one."""
    vocab, merges = {letter: number for number, letter in enumerate(LETTERS)}, [("h", "e"), ("l", "l"), ("he", "ll"), ("l", "o")]
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    core = Core(models.BPE(vocab, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<s>", "</s>"])
    core.add_tokens([AddedToken("<|tool|>", normalized=False)])
    return core


def write(folder, core: Core, **settings):
    core.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def template(core: Core, single: str | None) -> Core:
    """The tokeniser with what it puts around a text; None leaves that to the settings beside it."""
    if single is None:
        return core
    ids = [(token, core.token_to_id(token)) for token in ("<s>", "</s>") if token in single]
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return core


NEW = {"content": "<|new|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
SETTINGS = {
    "plain": ({}, "$A"),
    "template": ({}, "<s> $A"),
    "flags alone": ({"add_bos_token": True, "add_eos_token": True}, None),
    "one flag alone": ({"add_bos_token": True}, None),
    "flag off alone": ({"add_bos_token": False}, None),
    "neither flag nor template": ({}, None),
    "flags beside a template": ({"add_bos_token": True, "add_eos_token": False}, "$A </s>"),
    "new token": ({"added_tokens_decoder": {"263": NEW}}, "<s> $A"),
    "token made special": ({"added_tokens_decoder": {"262": {**NEW, "content": "<|tool|>"}}}, "<s> $A"),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_folders_are_read_as_transformers_reads_them(case, tmp_path):
    settings, single = SETTINGS[case]
    write(tmp_path, template(byte_level_core(), single), tokenizer_class="PreTrainedTokenizerFast", **settings)
    ours, theirs = read_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.special_ids == set(theirs.all_special_ids) | {number for number, token in ours.added.items() if token.special}
    for text in TEXTS:
        for add in (True, False):
            ids = ours.encode(text, add_special_tokens=add)
            assert ids == theirs.encode(text, add_special_tokens=add)
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert ours.num_added == len(ours.encode(""))


def test_the_bytes_of_tokens_add_up_to_the_text(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path, byte_level_core()))
    for text in TEXTS:
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text
    assert tokenizer.token_bytes(10**9) == tokenizer.token_bytes(-1) == b""
    assert not tokenizer.strips_leading_space
    assert tokenizer.vocab_size == 263
    assert tokenizer.id_to_token(262) == "<|tool|>"
    assert tokenizer.token_to_id("<|tool|>") == 262


def test_texts_are_those_of_all_tokens_from_the_first_on(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path, byte_level_core()))
    every = range(tokenizer.vocab_size)
    texts, shown = tokenizer.token_texts(False), tokenizer.token_texts(True)
    assert [text for text in texts if text is not None] == [tokenizer.decode([i], False) for i in every if texts[i] is not None]
    assert [i for i in every if shown[i] != texts[i]] == sorted(tokenizer.special_ids) == [i for i in every if shown[i] == ""]
    assert "hell" in texts
    parts = {i: tokenizer.token_bytes(i) for i in every if texts[i] is None}
    assert sorted(parts.values()) == [bytes([byte]) for byte in range(0x80, 0x100)]
    assert (len(texts), len(shown)) == (263, 263), "there is none to add when a token is seen"
    assert tokenizer.token_texts(True) is shown, "all streams share them"


def test_byte_fallback_kinds_have_bytes_too(tmp_path):
    vocab = {"<unk>": 0, "<s>": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}, "▁": 258, "a": 259, "▁a": 260}
    core = Core(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    ids = tokenizer.encode("a a é")
    assert b"".join(map(tokenizer.token_bytes, ids)) == " a a é".encode()
    assert tokenizer.decode(ids) == "a a é"
    assert tokenizer.strips_leading_space
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (None, None, ())


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    core = byte_level_core()
    core.enable_truncation(2)
    core.enable_padding(length=40)
    tokenizer = read_tokenizer(write(tmp_path, core))
    assert len(tokenizer.encode("abcdefgh")) == 8


@pytest.mark.parametrize("kind", ["field", "list", "json", "jinja", "folder"])
def test_chat_templates_are_found_wherever_they_are(kind, tmp_path):
    named = [{"name": "default", "template": "T"}, {"name": "tool_use", "template": "U"}]
    write(tmp_path, byte_level_core(), chat_template={"field": "T", "list": named}.get(kind, "old"))
    if kind == "json":
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "T"}))
    if kind in ("jinja", "folder"):
        (tmp_path / "chat_template.jinja").write_text("T")
    if kind == "folder":
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.chat_template == "T"
    assert tokenizer.chat_templates.get("tool_use") == ("U" if kind in ("list", "folder") else None)


def test_without_a_template_there_is_none(tmp_path):
    assert read_tokenizer(write(tmp_path, byte_level_core())).chat_template is None


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot be read"):
        read_tokenizer(tmp_path)
    write(tmp_path, byte_level_core())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: a JSON object"):
        read_tokenizer(tmp_path)


def test_a_rebuilt_tokeniser_equals_itself_saved_and_read(tmp_path):
    """The tokeniser of a GGUF file, written as tokenizer.json and read from there."""
    rebuilt = open_checkpoint("smollm2-135m").tokenizer()
    again = read_tokenizer(write(tmp_path, rebuilt.core, bos_token="<|im_start|>", eos_token="<|im_end|>"))
    assert again.special_ids == rebuilt.special_ids
    assert (again.eos_token_id, again.vocab_size) == (rebuilt.eos_token_id, rebuilt.vocab_size)
    for text in TEXTS:
        assert again.encode(text) == rebuilt.encode(text)
