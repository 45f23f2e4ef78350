from dataclasses import replace
from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch

from octavo.models.load import WeightsMismatch, fill_dummy, load
from octavo.models.materialize import layers_of
from octavo.models.registry import build_model
from octavo.models.tensors import LazyTensor
from tests.parity.memory import Memory, random_tokens
from tests.parity.tiny import SETTINGS, tiny


def lazy(tensor):
    return LazyTensor(tuple(tensor.shape), "U8" if tensor.dtype is torch.uint8 else "F32", tensor.numpy().reshape(-1).view("uint8"))


def tensors_for(c, scale=1.0, **changes):
    """A complete random checkpoint of a model, unfused, tensor by name; `changes` replaces entries (None removes one)."""
    model = build_model(c, SETTINGS)
    found = {}
    for _, layer in layers_of(model):
        for weight in layer.weights():
            if weight.pieces == {weight.name}:
                found[weight.name] = scale * torch.randn(weight.shape)
    found.update(changes)
    return {name: lazy(tensor) for name, tensor in found.items() if tensor is not None}


def refused(c, tensors):
    with pytest.raises(WeightsMismatch) as error:
        load(build_model(c, SETTINGS), tensors)
    return str(error.value)


def test_every_tensor_finds_its_place():
    c = tiny()
    tensors = tensors_for(c)
    model = build_model(c, SETTINGS)
    loaded = load(model, tensors)
    assert loaded.report.num_tensors == len(tensors)
    attention = model.model.layers["1"].self_attn
    q, k, v = attention.qkv_proj.weight.split([32, 16, 16])
    for part, name in ((q, "q_proj"), (k, "k_proj"), (v, "v_proj")):
        assert torch.equal(part, tensors[f"model.layers.1.self_attn.{name}.weight"].load())
    assert torch.equal(model.model.norm.weight, tensors["model.norm.weight"].load())


def test_fused_tensors_on_disk_load_as_their_parts_do():
    c = tiny()
    parts = tensors_for(c)
    fused = dict(parts)
    for i in range(2):
        for whole, names in (("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")), ("mlp.gate_up_proj", ("gate_proj", "up_proj"))):
            parent = f"model.layers.{i}.{whole.split('.')[0]}"
            together = torch.cat([fused.pop(f"{parent}.{name}.weight").load() for name in names])
            fused[f"model.layers.{i}.{whole}.weight"] = lazy(together)
    one, other = build_model(c, SETTINGS), build_model(c, SETTINGS)
    load(one, parts)
    load(other, fused)
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("fused", [False, True])
def test_packed_tensors_are_expanded_where_they_are_to_stay(monkeypatch, fused):
    c = tiny()
    shapes = {name: tensor.shape for name, tensor in tensors_for(c).items()}
    if fused:
        for i in range(2):
            for name in ("gate_proj", "up_proj"):
                del shapes[f"model.layers.{i}.mlp.{name}.weight"]
            shapes[f"model.layers.{i}.mlp.gate_up_proj.weight"] = (80, 32)
    rng = np.random.default_rng(0)
    tensors = {name: lazy(torch.randn(shape)) for name, shape in shapes.items() if len(shape) == 1}
    for name, shape in shapes.items():
        if len(shape) == 2:
            data = gguf.quants.quantize(rng.standard_normal(shape, np.float32), gguf.GGMLQuantizationType.Q4_1) if shape[1] == 32 else None
            tensors[name] = lazy(torch.randn(shape)) if data is None else LazyTensor(tuple(shape), "Q4_1", data.reshape(-1))
    there, copied = build_model(c, SETTINGS), build_model(c, SETTINGS)
    assert load(there, tensors).report.num_tensors == len(tensors)
    monkeypatch.setattr("octavo.models.load._place", lambda tensor, weight: None)
    load(copied, tensors)
    for (name, a), (_, b) in zip(there.named_parameters(), copied.named_parameters()):
        assert torch.equal(a, b), name


def test_parameters_lie_side_by_side_in_one_piece_of_memory():
    model = build_model(tiny(), SETTINGS)
    assert len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) == 1
    places = sorted((parameter.data_ptr(), parameter.nbytes) for parameter in model.parameters())
    assert all(at % 64 == 0 for at, _ in places)
    assert all(one + num_bytes <= other < one + num_bytes + 64 for (one, num_bytes), (other, _) in pairwise(places))


def test_missing_tensors_are_named_and_counted():
    text = refused(tiny(), tensors_for(tiny(), **{"model.layers.1.self_attn.k_proj.weight": None, "model.norm.weight": None}))
    assert "2 missing" in text
    assert "model.layers.1.self_attn.k_proj.weight" in text
    assert "model.norm.weight" in text


def test_unexpected_tensors_are_named_and_counted():
    text = refused(tiny(), tensors_for(tiny(), **{"model.layers.2.mlp.up_proj.weight": torch.ones(2), "vision.x": torch.ones(2)}))
    assert "2 not known to the model" in text
    assert "model.layers.2.mlp.up_proj.weight" in text
    assert "vision.x" in text


def test_long_lists_are_cut():
    text = refused(tiny(), {})
    assert "missing" in text
    assert "more" in text
    assert len(text) < 1000


def test_misshapen_tensors_are_named_with_both_shapes():
    text = refused(tiny(), tensors_for(tiny(), **{"model.layers.0.self_attn.q_proj.weight": torch.ones(31, 32)}))
    assert "model.layers.0.self_attn.q_proj.weight has shape (31, 32) where (32, 32) is needed" in text
    assert "missing" not in text


def test_a_tensor_given_whole_and_in_parts_is_refused():
    text = refused(tiny(), tensors_for(tiny(), **{"model.layers.0.mlp.gate_up_proj.weight": torch.ones(80, 32)}))
    assert "gate_up_proj.weight is there twice" in text


@pytest.mark.parametrize("found", [None, "transformer.output_head.weight"])
def test_a_head_that_is_not_there_gets_a_hint(found):
    tensors = tensors_for(tiny(), **{"lm_head.weight": None})
    if found:
        tensors[found] = lazy(torch.ones(50, 32))
    text = refused(tiny(), tensors)
    assert "1 missing: lm_head.weight" in text
    assert "tie_word_embeddings" in text
    assert found is None or text.count(found) == 2


def test_tied_heads_share_the_table_and_a_stored_copy_is_explained():
    c = tiny(tie_word_embeddings=True)
    model = build_model(c, SETTINGS)
    loaded = load(model, tensors_for(c, **{"lm_head.weight": torch.ones(50, 32)}))
    assert "shares" in loaded.explained["lm_head.weight"]
    assert not [name for name, _ in model.named_parameters() if name.startswith("lm_head")]
    torch.testing.assert_close(model.logits(torch.eye(32))[:, 7], model.model.embed_tokens(torch.tensor([7]))[0])


def test_computed_tables_of_older_files_are_explained():
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "model.rotary_emb.inv_freq": torch.ones(4)}
    loaded = load(build_model(tiny(), SETTINGS), tensors_for(tiny(), **extra))
    assert set(loaded.explained) == set(extra)


@pytest.mark.parametrize("names", [("k_scale", "v_scale"), ("k_proj.k_scale", "v_proj.v_scale")])
def test_scales_of_an_fp8_cache_are_used_where_there_is_one(names):
    c = tiny()
    values = torch.tensor(0.25), torch.tensor([1.5])  # either shape is met
    extra = {f"model.layers.{i}.self_attn.{name}": lazy(value) for i, value in enumerate(values) for name in names}
    settings = replace(SETTINGS, kv_dtype="fp8_e4m3")
    model = build_model(c, settings)
    load(model, {**tensors_for(c), **extra})
    assert [layer.kv_scales.tolist() for layer in model.attention_layers] == [[0.25, 0.25], [1.5, 1.5]]
    without = build_model(c, settings)
    load(without, tensors_for(c))
    assert [layer.kv_scales.tolist() for layer in without.attention_layers] == [[1.0, 1.0]] * 2
    loaded = load(build_model(c, SETTINGS), {**tensors_for(c), **extra})
    assert set(loaded.explained) == set(extra)


@pytest.mark.parametrize("layer", ["0.self_attn.o_proj", "1.mlp.up_proj", "1.self_attn.qkv_proj"])
def test_biases_of_layers_without_one_must_be_zero(layer):
    name = f"model.layers.{layer}.bias"
    loaded = load(build_model(tiny(), SETTINGS), tensors_for(tiny(), **{name: torch.zeros(4)}))
    assert "zeros" in loaded.explained[name]
    assert name in refused(tiny(), tensors_for(tiny(), **{name: torch.tensor([0.0, 1e-3])}))


class Unreadable(LazyTensor):
    def load(self, dtype=None):
        raise AssertionError("read without need")


def test_only_what_is_used_is_read_and_nothing_when_something_is_wrong():
    c = tiny(tie_word_embeddings=True)
    shared = Unreadable((50, 32), "F32", torch.ones(50, 32).numpy().reshape(-1).view("uint8"))
    load(build_model(c, SETTINGS), {**tensors_for(c), "lm_head.weight": shared})
    refused(tiny(), {"lm_head.weight": shared})


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_dummy_weights_give_finite_logits_and_the_same_ones_again(family):
    c = tiny(family)
    logits = []
    for _ in range(2):
        model = build_model(c, SETTINGS)
        fill_dummy(model, seed=3)
        logits.append(Memory(model, 4, max_length=64).run([t % 50 for t in random_tokens(12)], [9]))
    assert logits[0].isfinite().all()
    assert logits[0].std() > 0.01
    assert torch.equal(*logits)


def test_dummy_rows_differ_where_the_pattern_repeats(monkeypatch):
    monkeypatch.setattr("octavo.models.load.PATTERN", 101)
    model = build_model(tiny(), SETTINGS)
    fill_dummy(model)
    rows = model.model.embed_tokens.weight
    assert len({tuple(row) for row in rows.tolist()}) == rows.shape[0]
