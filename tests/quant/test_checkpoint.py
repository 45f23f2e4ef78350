"""Which layers stay packed, and that a model of packed layers computes what its numbers say."""

import pytest

from octavo.config.architecture import Architecture
from octavo.config.resolve import PACKED_KINDS
from octavo.config.resolved import Resolved
from octavo.models.checkpoint import open_checkpoint
from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.quant.checkpoint import as_stored
from octavo.quant.gguf import BLOCK_BYTES, GGUFBlocks
from octavo.quant.none import Plain
from tests.parity.memory import Memory


def test_a_layer_stays_packed_where_all_its_parts_are_of_one_known_kind() -> None:
    choose = as_stored({"q.weight": "Q4_1", "k.weight": "Q4_1", "v.weight": "Q6_K", "o.weight": "Q6_K", "norm.weight": None})
    assert isinstance(choose(("qk", "q", "k")), GGUFBlocks)
    assert isinstance(choose(("q",)), GGUFBlocks)
    for others in [("qkv", "q", "k", "v"), ("o",), ("norm",), ("not there",)]:
        assert isinstance(choose(others), Plain)


def test_what_is_decided_to_stay_packed_can() -> None:
    assert set(PACKED_KINDS) == set(BLOCK_BYTES)


@pytest.mark.parametrize(("level", "limit"), [(0, 1e-5), (2, 3e-2)])
def test_the_bundled_model_packed_is_the_same_model(level: int, limit: float) -> None:
    """Blocks in their file's order, rows of rotary pairs put back, fused layers, and a table that embeds and is the head."""
    checkpoint = open_checkpoint("smollm2-135m")
    architecture, tensors = Architecture.from_config(checkpoint.config), checkpoint.tensors()
    tokens = checkpoint.tokenizer().encode("The capital of France is")
    logits = []
    for scheme in (as_stored({}), as_stored({name: tensor.quantization for name, tensor in tensors.items()})):
        model = build_model(architecture, Resolved(max_model_len=64, optimization_level=level), scheme=scheme)
        load(model, tensors)
        logits.append(Memory(model, 16).run(tokens, [len(tokens)]))
    plain, packed = logits
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert num_bytes < 1.01 * sum(tensor.num_bytes for tensor in tensors.values())
    assert ((packed - plain).norm(dim=1) / plain.norm(dim=1)).max() < limit
