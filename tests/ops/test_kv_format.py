"""Number formats of K and V: what is stored and what is read back, and the Triton twins against the references."""

from __future__ import annotations

import pytest
import torch

from octavo.core.kv.layout import lay_out
from octavo.ops.kv_format import COMPRESSED, LARGEST, compressed, kv_dtype, restored
from octavo.ops.rope_and_write import rope_and_write
from octavo.worker.memory import allocate, bind
from tests.attention.kv_memory import Keeper, memory
from tests.interpreter import interpret

INTERPRETED = interpret()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ERROR = {"int8": 0.5 / 127, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}  # of a value against the largest of its head (int8) or itself


@pytest.mark.parametrize("name", sorted(COMPRESSED))
def test_what_is_read_back_is_near(name):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 16) * torch.tensor([0.1, 1.0, 30.0, 0.0])[:, None]  # a head of zeros too
    scales = None if name == "int8" else torch.tensor([2.0, 0.5])
    stored, new = compressed(x, kv_dtype(name), torch.zeros(1, 2, 1, 1, dtype=torch.float16) if scales is None else scales)
    assert stored.dtype == kv_dtype(name)
    assert (new is None) == (scales is not None)
    stored, wanted = stored.movedim(0, 1), x.movedim(0, 1)  # [2, tokens, heads, head_dim]
    found = restored(stored, scales if new is None else new.movedim(0, 1))
    bound = wanted.abs().amax(-1, keepdim=True) if name == "int8" else wanted.abs()
    assert ((found - wanted).abs() <= ERROR[name] * 1.01 * bound + 2**-9).all()
    assert (found - wanted).abs().max() > 0


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_what_is_too_large_is_cut(name):
    x = torch.tensor([1e6, -1e6]).expand(1, 2, 1, 2)
    stored, _ = compressed(x, kv_dtype(name), torch.ones(2))
    assert stored.float()[0, 0, 0].tolist() == [LARGEST[kv_dtype(name)], -LARGEST[kv_dtype(name)]]


@pytest.mark.parametrize("name", sorted(COMPRESSED))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "rotated"), [(3, 1, 16, 16), (4, 2, 24, 8), (9, 9, 32, None)])
def test_the_triton_twin_writes_the_same(name, heads, kv_heads, head_dim, rotated):
    pytest.importorskip("triton", reason="Triton is not on this machine")
    from octavo.ops.triton import rope_and_write as twin

    torch.manual_seed(0)
    num_tokens, block_tokens, num_blocks = 5, 4, 3
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    mine, theirs = (memory(name, num_blocks, block_tokens, kv_heads, head_dim, DEVICE) for _ in range(2))
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * head_dim, device=DEVICE).to(dtype)
    qkv[1] = 0
    slots = torch.tensor([5, 0, -1, 11, 7], device=DEVICE)
    positions = torch.arange(num_tokens, device=DEVICE)
    cos_sin = None if rotated is None else torch.randn(9, rotated, device=DEVICE)
    q = twin.rope_and_write(qkv, mine.kv, positions, slots, cos_sin, None, None, 0.0, mine.kv_scales)
    wanted = rope_and_write(qkv, theirs.kv, positions, slots, cos_sin, None, None, 0.0, theirs.kv_scales)
    torch.testing.assert_close(q, wanted)
    found, wanted = (keeper.values() for keeper in (mine, theirs))
    if INTERPRETED and name != "int8":  # the interpreter loses the carry of a mantissa that is rounded up to 2
        found = torch.where(2 * found == wanted, wanted, found)
    # A value between two that can be stored may go either way where the products before differ in their last bit.
    step = {"int8": 1 / 127, "fp8_e4m3": 2**-3, "fp8_e5m2": 2**-2}[name]
    assert ((found - wanted).abs() <= step * 1.01 * wanted.abs().amax()).all()
    assert ((found - wanted).abs() > 1e-5).float().mean() < 0.01
    assert found.abs().amax() > 1
    untouched = torch.ones(num_blocks * block_tokens, dtype=torch.bool)
    untouched[slots[slots >= 0].cpu()] = False
    assert not found.cpu().transpose(0, 1).flatten(1, 2)[:, untouched].any()


def test_the_arena_holds_blocks_and_their_scales():
    """Layers and blocks share nothing, and use nearly every byte."""
    keepers = [Keeper("int8", kv_heads=2, head_dim=64) for _ in range(2)]
    layout = lay_out([keeper.kv_spec() for keeper in keepers], 16, 100_000)
    arena = allocate(layout, torch.device("cpu"))
    bind(keepers, layout, arena)
    for number, keeper in enumerate(keepers):
        assert keeper.kv.shape == (layout.num_blocks, 2, 16, 2, 64)
        assert keeper.kv_scales.shape == (layout.num_blocks, 2, 16, 2)
        keeper.kv.fill_(number + 1)
        keeper.kv_scales.fill_(number + 2.0)
    for number, keeper in enumerate(keepers):
        assert (keeper.kv == number + 1).all()
        assert (keeper.kv_scales == number + 2).all()
    assert (arena != 0).sum() == arena.numel() * (64 + 1) / (64 + 2), "a float16 of 2 or 3 has one byte that is not 0"
