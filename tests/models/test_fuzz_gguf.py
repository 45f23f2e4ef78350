"""Broken GGUF files are refused or run, packed tensors in C too; what is refused says why."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.fuzz_gguf import Parts, attempt, broken, sound


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def tried(tmp_path, parts):
    path = tmp_path / "file.gguf"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(bytes(parts))
    return attempt(path)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**40))
def test_a_broken_file_is_refused_or_runs(tmp_path_factory, seed):
    assert tried(tmp_path_factory.getbasetemp(), broken(seed)).partition(": ")[2].strip()


def test_a_sound_file_runs(tmp_path):
    assert tried(tmp_path, sound()) == "ran: length"


def with_tensor(number: int, **changes: object) -> Parts:
    parts = sound()
    for name, value in changes.items():
        setattr(parts.tensors[number], name, value)
    return parts


def with_value(key: str, kind: int, value: bytes) -> Parts:
    parts = sound()
    parts.metadata = [(one, kind, value) if one == key.encode() else (one, *rest) for one, *rest in parts.metadata]
    return parts


def test_tensors_that_overlap_are_refused(tmp_path):
    parts = sound()
    parts.tensors[3].offset = parts.tensors[2].offset
    assert "overlap" in tried(tmp_path, parts)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (with_tensor(0, offset=2**40), "cut off"), (with_tensor(1, offset=2**64 - 32), "cut off"), (with_tensor(2, offset=33), "multiple"),
        (with_tensor(0, dims=[2**32, 2**31]), "cut off"), (with_tensor(0, dims=[33, 48]), "not a multiple"),
        (with_tensor(0, kind=99), "99"),
        (with_tensor(0, name=b"\xff"), "not known"), (with_tensor(4, name=b"blk.9.attn_q.weight"), "1 missing"),
        (with_value("general.alignment", 4, bytes(4)), "power of two"),
        (with_value("tokenizer.ggml.model", 9, b"\x04\0\0\0\x02" + bytes(15)), "tokenizer.ggml.model is not a text"),
        (with_value("tokenizer.ggml.pre", 9, b"\x04\0\0\0\x02" + bytes(15)), "tokenizer.ggml.pre is not a text"),
        (with_value("tokenizer.ggml.tokens", 4, bytes(4)), "not a list of texts"),
        (with_value("llama.block_count", 4, b"\x03\0\0\0"), "9 missing"), (with_value("llama.block_count", 4, b"\xff" * 4), "from 1 to"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, parts, said):
    assert said in tried(tmp_path, parts)


def test_scales_that_are_no_numbers_end_the_request_alone(tmp_path):
    parts = sound()
    at = next(one.offset for one in parts.tensors if one.name == b"blk.1.ffn_down.weight")
    parts.data[at : at + 2] = b"\xff\xff"
    assert tried(tmp_path, parts) == "ran: error"
