"""Every architecture in bfloat16 stays near its own float32 self, by the references and by what replaces them."""

import pytest

from octavo.config.families import FAMILIES
from octavo.config.resolved import Resolved
from octavo.models.load import load
from octavo.models.registry import build_model
from tests.models.test_load import tensors_for
from tests.parity.memory import Memory
from tests.parity.tiny import tiny

TOKENS = list(range(3, 40))


def logits(c, tensors, **settings):
    model = build_model(c, Resolved(max_model_len=64, **settings))
    load(model, tensors)
    return Memory(model, 8, num_rows=1, max_length=64).run(TOKENS, [20, 9])


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("family", [row.name for row in FAMILIES])
def test_bfloat16_is_close_to_float32(family, level):
    c = tiny(family)
    tensors = tensors_for(c, scale=0.2)
    exact = logits(c, tensors, optimization_level=0)
    rounded = logits(c, tensors, dtype="bfloat16", kv_dtype="bfloat16", optimization_level=level)
    rounded = rounded.float()  # as the product gave them where nothing is done to them
    assert (rounded - exact).abs().mean() < 0.03 * exact.std()
