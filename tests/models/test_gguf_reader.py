import random
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.models.gguf_architectures import hugging_face_config, hugging_face_tensors
from octavo.models.gguf_reader import read_gguf
from octavo.models.tensors import CheckpointError
from tests.models.gguf_files import hyperparameters, llama_tensors, write_gguf

METADATA = {
    "some.text": "grüße", "some.flag": False, "some.number": 7, "some.fraction": 0.5,
    "some.texts": ["a", "", "ß"], "some.numbers": [1, 2, 3], "some.fractions": [0.25, -1.5],
}  # fmt: skip
EXTREMES = [(1, 0xFF), (1, 0), (4, 0xFFFFFFFF), (4, 9), (8, 2**64 - 1), (8, 2**63), (8, 2**40), (8, 0)]  # width in bytes, value


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return write_gguf(path, "llama", {**hyperparameters("llama"), **METADATA}, llama_tensors(), {"token_embd.weight": "Q4_1"})


def test_metadata_and_tensors_are_read_as_written(small_file):
    file = read_gguf(small_file)
    assert file.metadata["general.architecture"] == "llama"
    for key, value in METADATA.items():
        found = file.metadata[key]
        assert (found if isinstance(found, (str, bytes, int, float)) else list(found)) == value
    assert file.tensors["token_embd.weight"].block.name == "Q4_1"
    assert file.tensors["token_embd.weight"].num_bytes == 48 * 20
    for name, values in llama_tensors().items():
        stored = file.tensors[name]
        assert stored.shape == values.shape
        if stored.block.name == "F32":
            data = file.data[stored.offset : stored.offset + stored.num_bytes]
            np.testing.assert_array_equal(data.view(np.float32).reshape(values.shape), values)


def test_a_file_cut_anywhere_is_refused(small_file, tmp_path):
    whole, path = small_file.read_bytes(), tmp_path / "cut.gguf"
    for length in sorted({0, 1, 4, 8, 23, 24, 25, *random.Random(0).sample(range(len(whole) - 256), 100)}):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            read_gguf(path)


def open_all(path):
    """Everything that opening a model does with a header."""
    file = read_gguf(path)
    for tensor in hugging_face_tensors(file, hugging_face_config(file)).values():
        tensor.raw()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 2200), st.sampled_from(EXTREMES)), min_size=1, max_size=3))
def test_damaged_headers_end_in_an_error_or_are_read(small_file, tmp_path_factory, changes):
    """Bytes changed anywhere in the header, to extreme numbers above all: a `CheckpointError` or a sound reading, nothing else."""
    damaged = bytearray(small_file.read_bytes())
    for at, (width, value) in changes:
        damaged[at : at + width] = value.to_bytes(width, "little")
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(damaged)
    with suppress(CheckpointError):
        open_all(path)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(0, b"GGML", "starts with"), (4, struct.pack("<I", 1), "version 1"), (4, struct.pack(">I", 3), "big-endian"),
     (8, struct.pack("<Q", 2**62), "tensors"), (16, struct.pack("<Q", 2**60), "metadata")],
)  # fmt: skip
def test_a_wrong_head_is_named(small_file, tmp_path, at, value, said):
    damaged = bytearray(small_file.read_bytes())
    damaged[at : at + len(value)] = value
    path = tmp_path / "head.gguf"
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=said):
        read_gguf(path)


def one_array(kind: int, count: int, body: bytes) -> bytes:
    """A file whose only metadata entry is an array of that many entries of that type."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, kind, count) + body


@pytest.mark.parametrize("kind", [0, 8, 9, 12])
def test_an_array_longer_than_the_file_is_refused_before_memory_is_taken(kind, tmp_path):
    path = tmp_path / "array.gguf"
    path.write_bytes(one_array(kind, 2**61, bytes(64)))
    with pytest.raises(CheckpointError, match="file ends before"):
        read_gguf(path)


def test_arrays_nested_without_end_are_refused(tmp_path):
    path = tmp_path / "nested.gguf"
    path.write_bytes(one_array(9, 1, struct.pack("<IQ", 9, 1) * 5000))
    with pytest.raises(CheckpointError, match="nests arrays"):
        read_gguf(path)
