from dataclasses import dataclass

import pytest
import torch

from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.parallel.mesh import Mesh
from tests.layers.test_linear import Silent
from tests.models.test_load import tensors_for
from tests.parity.tiny import SETTINGS, tiny


@dataclass(frozen=True)
class Apart(Silent):
    """A rank that keeps its own best token, counted over the whole vocabulary."""

    def best(self, tokens, peaks, first):
        return tokens + first, peaks


@pytest.mark.parametrize(("size", "vocab"), [(1, 1003), (2, 1003), (4, 1003), (6, 1003), (4, 5)])  # with 5 the last rank has none
def test_a_padded_vocabulary_gives_no_token_even_where_all_others_are_unlikely(size, vocab):
    """Padding has the logit 0. Here every token of the vocabulary has a lower one."""
    c = tiny(num_attention_heads=12, num_key_value_heads=12, intermediate_size=48, vocab_size=vocab)
    head, hidden = -torch.rand(vocab, 32) - 0.1, torch.rand(5, 32)
    tensors = tensors_for(c, **{"lm_head.weight": head})
    tokens, peaks = [], []
    for rank in range(size):
        model = build_model(c, SETTINGS, Mesh(tp=Apart(rank, size)))
        load(model, tensors)
        found = model.best(hidden)
        tokens.append(found[0])
        peaks.append(found[1])
    expected = hidden @ head.T
    assert expected.max() < 0
    peak, winner = torch.stack(peaks).max(0)
    torch.testing.assert_close(peak, expected.max(-1).values)
    assert torch.equal(torch.stack(tokens).gather(0, winner[None])[0], expected.argmax(-1))
