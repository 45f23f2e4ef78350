import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo.models.safetensors_reader import INDEX, read_safetensors, read_safetensors_folder
from octavo.models.tensors import DTYPES, CheckpointError


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"layer.{i}.weight": torch.randn(3, 4 + i, generator=generator) for i in range(4)}


def save_shards(folder, tensors: dict[str, torch.Tensor], num_shards: int = 2) -> None:
    names = sorted(tensors)
    places = {name: f"model-{i % num_shards + 1:05}-of-{num_shards:05}.safetensors" for i, name in enumerate(names)}
    for place in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == place}, folder / place)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("storage", DTYPES)
def test_every_type_is_read_as_the_library_wrote_it(storage, tmp_path):
    dtype = getattr(torch, DTYPES[storage])
    values = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    save_file({"a": values, "scalar": values[0, 1].clone(), "empty": values[:0].clone()}, tmp_path / "model.safetensors")
    tensors = read_safetensors_folder(tmp_path)
    assert (tensors["a"].storage, tensors["a"].shape, tensors["a"].quantization) == (storage, (2, 3), None)
    assert tensors["a"].num_bytes == values.nbytes
    for name, expected in (("a", values), ("scalar", values[0, 1]), ("empty", values[:0])):
        found = tensors[name].load()
        assert (found.dtype, found.shape) == (dtype, expected.shape)
        assert torch.equal(found.float(), expected.float())


def test_a_tensor_is_converted_when_asked(tmp_path):
    values = torch.randn(5, 7)
    save_file({"a": values}, tmp_path / "model.safetensors")
    tensor = read_safetensors_folder(tmp_path)["a"]
    assert torch.equal(tensor.load(torch.bfloat16), values.bfloat16())
    np.testing.assert_array_equal(tensor.raw(), values.numpy().view(np.uint8))


def test_what_is_loaded_can_be_written_to_and_the_file_stays(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(64)}, path)
    before = path.read_bytes()
    read_safetensors(path)["a"].load().zero_()
    assert path.read_bytes() == before


def test_shards_are_read_by_their_index(tmp_path):
    expected = weights()
    save_shards(tmp_path, expected)
    save_file({"layer.0.weight": torch.zeros(1)}, tmp_path / "consolidated.safetensors")  # not in the index: not of the model
    found = read_safetensors_folder(tmp_path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name].load(), values)


def test_without_an_index_all_files_count_unless_one_is_the_model(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    assert read_safetensors_folder(tmp_path).keys() == {"a", "b"}
    save_file({"c": torch.ones(1)}, tmp_path / "model.safetensors")
    assert read_safetensors_folder(tmp_path).keys() == {"c"}


def test_one_name_in_two_files_is_refused(tmp_path):
    for name in ("one", "two"):
        save_file({"a": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="'a' is also in another file"):
        read_safetensors_folder(tmp_path)


def test_missing_shards_and_tensors_are_named(tmp_path):
    save_shards(tmp_path, weights())
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="1 tensors are not in the files it names, the first is 'ghost'"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"not there: model-00002-of-00002\.safetensors"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../o.safetensors"}}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_refused(text, tmp_path):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        read_safetensors_folder(tmp_path)


def test_a_folder_without_weights_says_what_is_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \.safetensors files$"):
        read_safetensors_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        read_safetensors_folder(tmp_path)


def test_a_git_lfs_pointer_is_recognised(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        read_safetensors_folder(tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(weights(), path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path = tmp_path / f"cut{length}.safetensors"
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=f"cut{length}"):
            read_safetensors(path)


ENTRIES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.sampled_from(["F32", "U8", "Q9"]) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries({}, optional={"dtype": ENTRIES, "shape": ENTRIES, "data_offsets": ENTRIES}) | ENTRIES)
def test_any_header_ends_in_an_error_or_a_sound_tensor(tmp_path_factory, entry):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    header = json.dumps({"a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    try:
        tensor = read_safetensors(path)["a"]
    except CheckpointError:
        return
    assert tensor.load().numel() == tensor.num_values
