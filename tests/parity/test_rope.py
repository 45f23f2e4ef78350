"""Rotary positions of every kind against transformers, near and far."""

import pytest
import torch

from octavo.config.architecture import Architecture
from octavo.layers.rotary import rope_table
from tests.parity.memory import Memory, random_tokens

FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.4, 1.7, 2.0], "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with all options": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
        "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False,
    },
    "yarn with its own attention factor": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5,
    },
    "dynamic within its trained length": {"rope_type": "dynamic", "factor": 2.0},
}  # fmt: skip
FAR = [0, 1, 700, 5000, 100_000]


def their_table(model, positions):
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.tensor([positions]))
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_angles_at_far_positions(kind, make_pair):
    pair = make_pair("llama", rope_parameters={"rope_theta": 10000.0, **KINDS[kind]})
    positions = [0, 1, 70, 200, 255] if "dynamic" in kind else FAR
    rope = Architecture.from_config(pair.config).layers[0].rope
    table = rope_table(rope, 256 if "dynamic" in kind else max(FAR) + 1, torch.device("cpu"))
    torch.testing.assert_close(table[positions], their_table(pair.theirs, positions), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_a_model(kind, make_pair):
    pair = make_pair("llama", rope_parameters={"rope_theta": 10000.0, **KINDS[kind]})
    tokens = random_tokens(150)
    ours = Memory(pair.ours(max_model_len=256), 16).run(tokens, [60, 85])
    torch.testing.assert_close(ours, pair.their_logits(tokens), atol=1e-4, rtol=0)


def test_dynamic_goes_by_the_longest_length_served(make_pair):
    """transformers stretches to the text at hand; a server, whose keys stay, to the longest that it takes. At that length both agree."""
    pair = make_pair("llama", max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    tokens = random_tokens(100)
    ours = Memory(pair.ours(max_model_len=100), 16).run(tokens, [60, 39])
    torch.testing.assert_close(ours, pair.their_logits(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize(("served", "length"), [(48, 40), (256, 150)])
def test_longrope_takes_the_factors_of_the_length_served(served, length, partial, make_pair):
    factors = {key: values[: int(6 * partial)] for key, values in FACTORS.items()}
    pair = make_pair(
        "phi3", original_max_position_embeddings=48, max_position_embeddings=256, partial_rotary_factor=partial,
        rope_parameters={"rope_type": "longrope", **factors},
    )  # fmt: skip
    tokens = random_tokens(length)
    ours = Memory(pair.ours(max_model_len=served), 16).run(tokens, [length - 3])
    torch.testing.assert_close(ours, pair.their_logits(tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("position", [0, 1, 700])
def test_partial_rotary_turns_its_part_and_passes_the_rest(position, make_pair):
    pair = make_pair("phi3", hidden_size=64, partial_rotary_factor=0.5)  # head_dim 16, of which 8 are turned
    rope = Architecture.from_config(pair.config).layers[0].rope
    assert rope.dim == 8
    torch.testing.assert_close(
        rope_table(rope, 701, torch.device("cpu"))[[position]], their_table(pair.theirs, [position]), atol=1e-5, rtol=0
    )


def test_gemma3_turns_far_and_near_layers_apart(make_pair):
    pair = make_pair("gemma3_text", head_dim=16, layer_types=["sliding_attention", "full_attention"], sliding_window=300, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    })  # fmt: skip
    tokens = random_tokens(150)
    ours = Memory(pair.ours(), 16).run(tokens, [100, 45])
    torch.testing.assert_close(ours, pair.their_logits(tokens), atol=1e-4, rtol=0)


def test_a_limit_beyond_the_configs_own_extends_the_table(make_pair):
    """A forced larger limit never reads past the table's end: plain positions simply go on."""
    pair = make_pair("llama", max_position_embeddings=64)
    model = pair.ours(max_model_len=128)
    assert model.attention_layers[0].cos_sin.shape == (128, 12)
    tokens = random_tokens(100)
    torch.testing.assert_close(Memory(model, 16).run(tokens, [60, 39]), pair.their_logits(tokens), atol=1e-4, rtol=0)
