"""The references against their definitions, written out the slow way in float64."""

import math

import pytest
import torch

from octavo.ops.gated import gelu_tanh_mul, silu_mul
from octavo.ops.select import choose_ops

OPS = choose_ops("cpu", 0)


def close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours.double(), theirs.double(), **(tolerance or {"atol": 1e-6, "rtol": 1e-5}))


def norm64(x, weight, eps):
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("shape", [(1, 8), (3, 5), (2, 3, 7)])
def test_rms_norm(shape):
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    close(OPS.rms_norm(x, weight, 1e-3), norm64(x, weight, 1e-3))


def test_rms_norm_rounds_once():
    x, weight = torch.randn(4, 64).bfloat16(), torch.randn(64)
    assert torch.equal(OPS.rms_norm(x, weight, 1e-6), norm64(x, weight, 1e-6).float().bfloat16())


def test_add_rms_norm_scales_what_it_adds():
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, total = OPS.add_rms_norm(x, residual.clone(), weight, 1e-5, 0.3)
    close(total, residual + 0.3 * x)
    close(normed, norm64(residual + 0.3 * x, weight, 1e-5))


def test_gates():
    gate, up = torch.randn(2, 3, 5)
    packed = torch.cat((gate, up), dim=1)
    wide = gate.double()
    close(silu_mul(packed), wide / (1 + (-wide).exp()) * up)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    close(gelu_tanh_mul(packed), 0.5 * wide * (1 + inner.tanh()) * up)


def test_linear():
    x, weight, bias = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4)
    packed = OPS.pack_linear(weight)
    close(OPS.linear(x, packed, bias), x.double() @ weight.double().T + bias)
    close(OPS.linear(x, packed, None), x.double() @ weight.double().T)


@pytest.mark.parametrize("gate", [None, "silu", "gelu_tanh"])
def test_linear_with_what_is_around_it(gate):
    x, weight, bias, norm = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4), torch.randn(5)
    y = norm64(x, norm, 1e-3) @ weight.double().T + bias
    if gate is not None:
        y = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}[gate](y)
    residual = torch.randn(y.shape)
    close(OPS.linear(x, weight, bias, (norm, 1e-3), gate, residual.clone(), 0.25), residual + 0.25 * y)
    close(OPS.linear(x, weight, bias, (norm, 1e-3), gate, scale=0.25), 0.25 * y)


def test_embedding_gives_zeros_for_rows_of_other_ranks():
    table = torch.randn(10, 4)
    got = OPS.embedding(torch.tensor([0, 3, 6, 9]), table[3:7], 3)
    assert torch.equal(got, torch.stack((torch.zeros(4), table[3], table[6], torch.zeros(4))))
    assert torch.equal(OPS.embedding(torch.arange(10), table, 0), table)


HEADS, KV_HEADS, HEAD_DIM, BLOCK, BLOCKS, TOKENS = 4, 2, 8, 3, 5, 6


def packed_case(rotated=HEAD_DIM):
    torch.manual_seed(1)
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    kv = torch.full((BLOCKS, 2, BLOCK, KV_HEADS, HEAD_DIM), 7.0)
    angles = torch.outer(torch.arange(20.0), torch.rand(rotated // 2))
    return qkv, kv, torch.cat((angles.cos(), angles.sin()), 1)


def turned(x, position, cos_sin):
    """One head the slow way: pair i with i + half as a complex number times e^(i angle)."""
    half = cos_sin.shape[1] // 2
    turn = torch.complex(cos_sin[position, :half], cos_sin[position, half:])
    pairs = torch.complex(x[:half], x[half : 2 * half]) * turn
    return torch.cat((pairs.real, pairs.imag, x[2 * half :]))


@pytest.mark.parametrize("rotated", [HEAD_DIM, 4, 0])
@pytest.mark.parametrize("norms", ["none", "head", "width"])
def test_rope_and_write(rotated, norms):
    qkv, kv, cos_sin = packed_case(rotated or HEAD_DIM)
    cos_sin = cos_sin if rotated else None
    positions, slots = torch.tensor([0, 19, 3, 3, 7, 1]), torch.tensor([4, 0, -1, 14, -1, 9])
    weights = {"none": (None, None), "head": (torch.rand(HEAD_DIM), torch.rand(HEAD_DIM)),
               "width": (torch.rand(HEADS * HEAD_DIM), torch.rand(KV_HEADS * HEAD_DIM))}[norms]  # fmt: skip
    before = kv.clone()
    q_out = OPS.rope_and_write(qkv.clone(), kv, positions, slots, cos_sin, *weights, 1e-5)
    q, k, v = qkv.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], 1)
    if norms != "none":
        q = norm64(q.unflatten(1, (-1, weights[0].numel())), weights[0], 1e-5).float().flatten(1)
        k = norm64(k.unflatten(1, (-1, weights[1].numel())), weights[1], 1e-5).float().flatten(1)
    q, k, v = (t.unflatten(1, (-1, HEAD_DIM)) for t in (q, k, v))
    expected = before
    for t in range(TOKENS):
        for h in range(HEADS):
            close(q_out[t, h], turned(q[t, h], positions[t], cos_sin) if rotated else q[t, h])
        if slots[t] >= 0:
            block, offset = divmod(int(slots[t]), BLOCK)
            for h in range(KV_HEADS):
                expected[block, 0, offset, h] = turned(k[t, h], positions[t], cos_sin) if rotated else k[t, h]
            expected[block, 1, offset] = v[t]
    close(kv, expected)


def test_nothing_is_written_without_slots():
    qkv, kv, cos_sin = packed_case()
    before = kv.clone()
    OPS.rope_and_write(qkv, kv, torch.zeros(TOKENS, dtype=torch.int64), torch.full((TOKENS,), -1), cos_sin, None, None, 0.0)
    assert torch.equal(kv, before)


def test_the_memory_may_be_a_view_with_gaps_and_of_another_dtype():
    """Layers of a group share blocks, so one layer's view has strides of its own."""
    qkv, kv, cos_sin = packed_case()
    arena = torch.full((BLOCKS, 3, 2, BLOCK, KV_HEADS, HEAD_DIM), 7.0, dtype=torch.bfloat16)
    positions, slots = torch.arange(TOKENS), torch.tensor([4, 0, -1, 14, -1, 9])
    OPS.rope_and_write(qkv, kv, positions, slots, cos_sin, None, None, 0.0)
    OPS.rope_and_write(qkv, arena[:, 1], positions, slots, cos_sin, None, None, 0.0)
    assert torch.equal(arena[:, 1], kv.bfloat16())
    assert (arena[:, [0, 2]] == 7).all()
