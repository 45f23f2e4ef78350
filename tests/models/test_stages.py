"""A model cut into pipeline stages computes what the whole one does."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from octavo.context import ForwardContext
from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.parallel.mesh import Group, Mesh
from tests.models.test_load import tensors_for
from tests.parity.memory import Memory
from tests.parity.tiny import SETTINGS, tiny


@pytest.mark.parametrize("family", ["llama", "olmo2", "gemma2", "granite"])
@pytest.mark.parametrize("tied", [True, False])
def test_stages_hand_on_their_hidden_state(family, tied):
    c = tiny(family, num_hidden_layers=3, tie_word_embeddings=tied, residual_multiplier=0.5)
    tensors = tensors_for(c)
    whole = build_model(c, SETTINGS)
    load(whole, tensors)
    stages = []
    for rank in range(2):
        part = build_model(c, SETTINGS, Mesh(pp=Group(rank, 2)))
        loaded = load(part, tensors)
        assert set(loaded.explained.values()) <= {"on another pipeline stage"}
        stages.append(part)
    assert [list(part.model.layers) for part in stages] == [["0", "1"], ["2"]]
    assert sum(len(part.attention_layers) for part in stages) == 3

    class Chain(torch.nn.Module):
        """Both stages as one model, for the test's memory to drive."""

        attention_layers = [layer for part in stages for layer in part.attention_layers]
        logits = stages[1].logits

        def forward(self, ctx: ForwardContext):
            return stages[1](replace(ctx, hidden_in=stages[0](ctx)))

    tokens = list(range(3, 20))
    expected = Memory(whole, 4, max_length=32).run(tokens, [9, 5])
    torch.testing.assert_close(Memory(Chain(), 4, max_length=32).run(tokens, [9, 5]), expected, atol=1e-5, rtol=0)


def test_embeddings_can_be_given():
    c = tiny()
    model = build_model(c, SETTINGS)
    load(model, tensors_for(c))
    tokens = list(range(3, 10))
    with torch.inference_mode():
        embeds = model.model.embed_tokens(torch.tensor(tokens))
    expected = Memory(model, 4, max_length=32).run(tokens, [7])

    class Given(SimpleNamespace):
        def __call__(self, ctx):
            return model(replace(ctx, embeds=embeds))

    given = Given(attention_layers=model.attention_layers, logits=model.logits)
    assert torch.equal(Memory(given, 4, max_length=32).run([0] * 7, [7]), expected)
