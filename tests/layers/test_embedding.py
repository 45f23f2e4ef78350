from dataclasses import replace

import pytest
import torch

from octavo.layers.embedding import Embedding, TiedHead
from octavo.parallel.mesh import Mesh
from tests.layers.test_linear import ENV, Silent


@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_ranks_hold_stretches_of_the_vocabulary(size):
    """1003 rows cut over ranks: the sum of the ranks' embeddings and their logits side by side are those of the whole table."""
    table, tokens, x = torch.randn(1003, 8), torch.tensor([0, 1, 501, 502, 1002]), torch.randn(3, 8)
    embedded, logits = torch.zeros(5, 8), []
    for rank in range(size):
        env = replace(ENV, mesh=Mesh(tp=Silent(rank, size)))
        layer = Embedding(1003, 8, multiplier=2.0)
        layer.bind("model.embed_tokens", env)
        (weight,) = layer.weights()
        assert weight.shape == (1003, 8)
        weight.put(table)
        head = TiedHead(layer)
        head.bind("lm_head", env)
        head.finish()
        embedded += layer(tokens)
        logits.append(head(x))
    torch.testing.assert_close(embedded, 2 * table[tokens])
    together = torch.cat(logits, dim=1)
    torch.testing.assert_close(together[:, :1003], x @ table.T)
    assert not together[:, 1003:].any()


def test_the_scale_is_rounded_to_the_models_dtype():
    layer = Embedding(4, 8, multiplier=8**0.5)
    layer.bind("model.embed_tokens", replace(ENV, dtype=torch.bfloat16))
    assert layer.factor == torch.tensor(8**0.5).bfloat16().item()
