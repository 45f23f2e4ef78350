"""A linear layer cut over ranks, loaded from fused and unfused tensors: the ranks together are the whole layer."""

from dataclasses import dataclass, replace

import pytest
import torch

from octavo.attention.reference import ReferenceAttention
from octavo.layers.env import Env
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.ops.gated import silu_mul
from octavo.ops.select import Ops
from octavo.parallel.mesh import Group, Mesh
from octavo.parallel.shard import Shard
from octavo.quant.checkpoint import plain_scheme


@dataclass(frozen=True)
class Silent(Group):
    """A rank whose sums the test makes itself."""

    def all_reduce(self, x):
        return x


ENV = Env(
    device=torch.device("cpu"), dtype=torch.float32, kv_dtype="float32", ops=Ops(), attention=ReferenceAttention(), mesh=Mesh(),
    scheme=plain_scheme, rope_table=lambda rope: torch.empty(0),
)  # fmt: skip
PARTS = {"q_proj": 24, "k_proj": 16, "v_proj": 16}


def fill(layer, tensors, rank=0, size=1):
    layer.bind("model.qkv_proj", replace(ENV, mesh=Mesh(tp=Silent(rank, size))))
    filled = set()
    for weight in layer.weights():
        if weight.name in tensors:
            assert tuple(tensors[weight.name].shape) == weight.shape
            weight.put(tensors[weight.name])
            filled |= weight.pieces
    layer.finish()
    return filled


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_cut_along_the_output(fused, bias, size):
    weights = {name: torch.randn(n, 12) for name, n in PARTS.items()}
    biases = {name: torch.randn(n) for name, n in PARTS.items()}
    if fused:
        tensors = {"model.qkv_proj.weight": torch.cat(list(weights.values())), "model.qkv_proj.bias": torch.cat(list(biases.values()))}
    else:
        tensors = {f"model.{n}.weight": w for n, w in weights.items()} | {f"model.{n}.bias": b for n, b in biases.items()}
    x = torch.randn(3, 12)
    parts = []
    for rank in range(size):
        layer = Linear(12, PARTS, Shard.OUT, unit=4, bias=bias)
        if size == 4:  # 6 units of q cannot be cut in 4
            with pytest.raises(ValueError, match=r"q_proj of 6 units cannot be cut over 4 ranks"):
                fill(layer, tensors, rank, size)
            return
        filled = fill(layer, tensors, rank, size)
        assert filled == {f"model.{n}.{kind}" for n in PARTS for kind in (("weight", "bias") if bias else ("weight",))}
        parts.append(layer(x).split([n // size for n in PARTS.values()], dim=1))
    for i, name in enumerate(PARTS):
        expected = x @ weights[name].T + (biases[name] if bias else 0)
        torch.testing.assert_close(torch.cat([part[i] for part in parts], dim=1), expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cut_along_the_input_is_summed(size):
    tensors = {"model.qkv_proj.weight": torch.randn(8, 24), "model.qkv_proj.bias": torch.randn(8)}
    x = torch.randn(3, 24)
    total = torch.zeros(3, 8)
    for rank, piece in enumerate(x.chunk(size, dim=1)):
        layer = Linear(24, 8, Shard.IN, unit=4, bias=True)
        fill(layer, tensors, rank, size)
        total += layer(piece)
    torch.testing.assert_close(total, x @ tensors["model.qkv_proj.weight"].T + tensors["model.qkv_proj.bias"])


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_that_sum_bring_the_residual_once(size):
    tensors = {"model.qkv_proj.weight": torch.randn(8, 24), "model.qkv_proj.bias": torch.randn(8)}
    x, residual = torch.randn(3, 24), torch.randn(3, 8)
    total = torch.zeros(3, 8)
    for rank, piece in enumerate(x.chunk(size, dim=1)):
        layer = Linear(24, 8, Shard.IN, unit=4, bias=True, scale=0.5)
        fill(layer, tensors, rank, size)
        total += layer(piece, residual=residual.clone())
    expected = residual + 0.5 * (x @ tensors["model.qkv_proj.weight"].T + tensors["model.qkv_proj.bias"])
    torch.testing.assert_close(total, expected)


def test_a_norm_and_a_gate_around_the_product():
    tensors = {"model.qkv_proj.weight": torch.randn(8, 6)}
    layer, norm = Linear(6, 8, Shard.OUT), RMSNorm(6, 1e-3)
    fill(layer, tensors)
    norm.bind("norm", ENV)
    norm.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x, norm, "silu"), silu_mul(norm(x) @ tensors["model.qkv_proj.weight"].T))


def test_weights_are_converted_to_the_models_dtype():
    layer = Linear(6, 4)
    layer.bind("head", replace(ENV, dtype=torch.bfloat16))
    (weight,) = layer.weights()
    assert weight.name == "head.weight"
    value = torch.randn(4, 6)
    weight.put(value)
    assert torch.equal(layer.weight.data, value.bfloat16())
