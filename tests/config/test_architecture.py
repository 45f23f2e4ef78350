import json
import subprocess
import sys

import pytest
from transformers import AutoConfig

from octavo.config.architecture import Architecture
from octavo.config.families import FAMILIES, Norms, QkNorm
from octavo.config.hf_config import UnsupportedModel

SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 8, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


def config(family="llama", **changes):
    row = next(row for row in FAMILIES if row.name == family)
    return {**SMALL, "architectures": list(row.architectures), "model_type": family, **changes}


def read(family="llama", **changes):
    return Architecture.from_config(config(family, **changes))


def test_reads_without_torch():
    code = "import sys; import octavo.config.architecture; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_llama():
    c = read()
    assert (c.hidden, c.heads, c.kv_heads, c.head_dim, c.q_dim, c.kv_dim) == (64, 4, 2, 16, 64, 32)
    assert c.num_layers == 8
    assert {layer.window for layer in c.layers} == {None}
    assert c.layers[0].rope is not None
    assert (c.layers[0].rope.kind, c.layers[0].rope.dim, c.layers[0].rope.theta) == ("plain", 16, 10000.0)
    assert c.max_length == 256
    assert not c.tied_embeddings
    assert c.attention_scale == 0.25
    assert (c.norms, c.qk_norm, c.norm_offset) == (Norms.PRE, None, 0.0)


@pytest.mark.parametrize("family", [row.name for row in FAMILIES])
def test_defaults_are_those_of_transformers(family, tmp_path):
    """A config that leaves everything out that transformers lets it leave out means the same to both."""
    row = next(row for row in FAMILIES if row.name == family)
    needed = {"num_experts_per_tok": 6} if family == "deepseek_v2" else {}  # transformers has None, which runs nowhere
    theirs = AutoConfig.for_model(family, **needed)
    ours = Architecture.from_config({
        "architectures": list(row.architectures), "model_type": family, "hidden_size": theirs.hidden_size, "vocab_size": theirs.vocab_size,
        "num_attention_heads": theirs.num_attention_heads, "num_hidden_layers": theirs.num_hidden_layers,
        "num_key_value_heads": theirs.num_key_value_heads, "intermediate_size": theirs.intermediate_size,
    })  # fmt: skip
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    own = getattr(theirs, "qk_head_dim", None) or getattr(theirs, "head_dim", None)
    assert ours.head_dim == (own or theirs.hidden_size // theirs.num_attention_heads)
    # and the config that transformers writes in its new form reads the same as one in the old form
    theirs.architectures = list(row.architectures)
    theirs.save_pretrained(tmp_path)
    written = Architecture.from_config(json.loads((tmp_path / "config.json").read_text()))
    assert {**vars(written), "dtype": None} == {**vars(ours), "dtype": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["NoSuchForCausalLM"]}, ["NoSuchForCausalLM", "LlamaForCausalLM", "Gemma3ForCausalLM"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification", "supported are"]),
        ({"architectures": [], "model_type": "nosuch"}, ["nosuch", "LlamaForCausalLM"]),
        ({"hidden_size": None}, ["hidden_size", "None"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"vocab_size": "12"}, ["vocab_size", "'12'"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads = 3", "num_attention_heads = 4"]),
        ({"hidden_act": "relu"}, ["relu", "silu"]),
        ({"rope_scaling": {"rope_type": "x-yarn", "factor": 4.0}}, ["x-yarn", "longrope"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["linear", "factor"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2, "short_factor": [1.0], "long_factor": [1.0]}}, ["8 numbers"]),
        ({"partial_rotary_factor": 0.3}, ["head_dim = 16", "even"]),
        ({"partial_rotary_factor": 1.5}, ["head_dim = 16", "even"]),
    ],
)
def test_what_is_not_supported_is_named(changes, said):
    changes = {"partial_rotary_factor": 5 / 16} if changes.get("partial_rotary_factor") == 0.3 else changes
    with pytest.raises(UnsupportedModel) as error:
        read(**changes)
    for text in said:
        assert text in str(error.value)


JUNK = [None, 0, -1, 1.5, "x", "", [], [1], {}, {"x": 1}, True, float("nan")]


@pytest.mark.parametrize("family", ["llama", "smollm3", "gemma3_text", "phi3"])
def test_no_value_in_a_config_gives_any_other_error(family):
    """Whatever stands in a field, the config is read or refused by `UnsupportedModel`."""
    base = config(
        family, head_dim=16, rope_theta=1e4, rope_scaling={"type": "yarn", "factor": 2.0}, rope_parameters=None, layer_types=None,
        sliding_window=8, use_sliding_window=True, max_window_layers=1, sliding_window_pattern=3, no_rope_layers=None,
        no_rope_layer_interval=2, partial_rotary_factor=1.0, original_max_position_embeddings=64, attention_multiplier=1.0,
        logits_scaling=1.0, query_pre_attn_scalar=16, tie_word_embeddings=False, hidden_act="silu", hidden_activation=None, dtype="x",
    )  # fmt: skip
    refused = 0
    for key in base:
        for junk in JUNK:
            try:
                Architecture.from_config({**base, key: junk})
            except UnsupportedModel:
                refused += 1
    for key in ("type", "factor", "short_factor", "original_max_position_embeddings", "rope_theta", "beta_fast"):
        for junk in JUNK:
            try:
                Architecture.from_config({**base, "rope_scaling": {**base["rope_scaling"], key: junk}})
            except UnsupportedModel:
                refused += 1
    assert refused > 50


def test_model_type_is_enough_when_no_architecture_is_named():
    assert read("qwen3", architectures=None, head_dim=None).qk_norm is QkNorm.HEAD


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        (None, 32768),
        ({"type": "linear", "factor": 2.0}, 65536),
        ({"rope_type": "dynamic", "factor": 2.0}, 65536),
        ({"rope_type": "yarn", "factor": 4.0}, 131072),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),  # scaled already: not twice
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 4096}, 32768),
    ],
)
def test_longest_context(scaling, limit):
    assert read(max_position_embeddings=32768, rope_scaling=scaling).max_length == limit


def test_partial_rotary_counts_over_the_head():
    assert read(partial_rotary_factor=0.5).layers[0].rope.dim == 8
    assert read(rope_parameters={"rope_theta": 5.0, "partial_rotary_factor": 0.5}).layers[0].rope.dim == 8


def test_biases():
    def biases(c):
        return c.qkv_bias, c.o_bias, c.mlp_bias

    assert biases(read(attention_bias=True, mlp_bias=True)) == (True, True, True)
    assert biases(read("qwen2")) == (True, False, False)
    assert biases(read("qwen3", attention_bias=True)) == (True, True, False)


def windows(c):
    return [layer.window for layer in c.layers]


def test_windows():
    assert windows(read("mistral", sliding_window=7)) == [7] * 8
    assert windows(read("mistral", sliding_window=None)) == [None] * 8
    assert windows(read("qwen2", sliding_window=7, use_sliding_window=False)) == [None] * 8
    assert windows(read("qwen2", sliding_window=7, use_sliding_window=True, max_window_layers=6)) == [None] * 6 + [7] * 2
    assert windows(read("gemma2", sliding_window=7)) == [7, None] * 4
    assert windows(read("gemma3_text", sliding_window=7)) == [7] * 5 + [None, 7, 7]
    assert windows(read("gemma3_text", sliding_window=7, layer_types=["full_attention"] * 8)) == [None] * 8
    with pytest.raises(UnsupportedModel, match="chunked_attention"):
        read("gemma3_text", layer_types=["chunked_attention"] * 8)
    with pytest.raises(UnsupportedModel, match="no_rope_layers has 3"):
        read("smollm3", no_rope_layers=[1, 1, 0])
    with pytest.raises(UnsupportedModel, match="3 entries"):
        read("gemma3_text", layer_types=["full_attention"] * 3)


def test_gemma3_has_two_ropes():
    c = read("gemma3_text", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    local, wide = c.layers[0].rope, c.layers[5].rope
    assert (local.kind, local.theta) == ("plain", 1e4)
    assert (wide.kind, wide.theta, wide.factor) == ("linear", 1e6, 8.0)
    assert c.max_length == c.max_position  # Gemma 3 states its limit with the scaling in it
    new = read("gemma3_text", rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    })  # fmt: skip
    assert new.layers == c.layers


def test_smollm3_leaves_positions_out_of_some_layers():
    assert [layer.rope is None for layer in read("smollm3").layers] == [False, False, False, True] * 2
    given = read("smollm3", no_rope_layers=[0, 1] * 4, use_sliding_window=True, sliding_window=9)
    assert [layer.rope is None for layer in given.layers] == [True, False] * 4
    assert windows(given) == [9, None] * 4


def test_multipliers():
    c = read("granite", attention_multiplier=0.5, logits_scaling=8.0, residual_multiplier=0.25, embedding_multiplier=12.0)
    assert (c.attention_scale, c.logits_scale, c.residual_scale, c.embedding_scale) == (0.5, 0.125, 0.25, 12.0)
    g = read("gemma2", query_pre_attn_scalar=64, attn_logit_softcapping=None)
    assert (g.attention_scale, g.attention_softcap, g.logits_softcap, g.embedding_scale, g.norm_offset) == (0.125, None, 30.0, 8.0, 1.0)


def test_phi3_older_names_of_longrope():
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    c = read("phi3", rope_scaling={"type": "su", **factors}, original_max_position_embeddings=64)
    assert (c.layers[0].rope.kind, c.layers[0].rope.factor, c.layers[0].rope.original_max_position) == ("longrope", 4.0, 64)
