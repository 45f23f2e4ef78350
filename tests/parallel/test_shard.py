import pytest
import torch

from octavo.parallel.mesh import Group
from octavo.parallel.shard import Extent, ParamSpec, Shard, cut

WEIGHT = ParamSpec((12, 8), torch.float32, ("out", "in"))
SCALES = ParamSpec((3, 2), torch.float32, ("out", "in"), grain=(4, 4))  # one scale for 4 x 4 weights
PACKED = ParamSpec((12, 2), torch.int32, ("out", "in"), grain=(1, 4))  # 4 weights in one number
BIAS = ParamSpec((12,), torch.float32, ("out",), added=True)
OUT_SCALE = ParamSpec((12,), torch.float32, ("out",))


def numbered(shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def pieces(tensor, spec, shard, extent, size):
    return [cut(tensor, spec, shard, extent, Group(rank, size)) for rank in range(size)]


@pytest.mark.parametrize("spec", [WEIGHT, SCALES, PACKED, BIAS])
@pytest.mark.parametrize(("shard", "features"), [(Shard.OUT, 12), (Shard.IN, 8)])
@pytest.mark.parametrize("alone", [True, False])
def test_pieces_make_the_whole(spec, shard, features, alone):
    size = 1 if alone else 3 if spec is SCALES and shard is Shard.OUT else 2  # 12 features in groups of 4 do not halve
    whole = numbered(spec.shape)
    found = pieces(whole, spec, shard, Extent(features), size)
    if shard.value in spec.axes:
        assert torch.equal(torch.cat(found, dim=spec.axes.index(shard.value)), whole)
        assert len({piece.shape for piece in found}) == 1
    else:
        assert torch.equal(sum(found), whole)


def test_a_product_cut_either_way_is_the_product():
    x, weight, bias = torch.randn(5, 8), torch.randn(12, 8), torch.randn(12)
    whole = x @ weight.T + bias
    out = [x @ w.T + b for w, b in zip(pieces(weight, WEIGHT, Shard.OUT, Extent(12), 4), pieces(bias, BIAS, Shard.OUT, Extent(12), 4))]
    torch.testing.assert_close(torch.cat(out, 1), whole)
    xs = x.chunk(4, dim=1)
    weights, biases = pieces(weight, WEIGHT, Shard.IN, Extent(8), 4), pieces(bias, BIAS, Shard.IN, Extent(8), 4)
    torch.testing.assert_close(sum(part @ w.T + b for part, w, b in zip(xs, weights, biases)), whole)


def test_what_does_not_run_along_the_cut_stays_whole_on_every_rank():
    whole = numbered((12,))
    assert all(torch.equal(piece, whole) for piece in pieces(whole, OUT_SCALE, Shard.IN, Extent(8), 2))
    assert all(torch.equal(piece, whole) for piece in pieces(whole, OUT_SCALE, Shard.NONE, Extent(12), 2))


def test_units_are_not_separated():
    assert [Extent(48, unit=8).share(Group(rank, 3)) for rank in range(3)] == [(0, 16), (16, 16), (32, 16)]
    with pytest.raises(ValueError, match=r"q_proj of 6 units cannot be cut over 4 ranks; sizes that work: \[1, 2, 3, 6\]"):
        Extent(48, unit=8, name="q_proj").share(Group(0, 4))
    with pytest.raises(ValueError, match="cannot be cut"):
        Extent(47, unit=8).share(Group(0, 2))


def test_ranks_beyond_the_units_hold_copies():
    shares = [Extent(16, unit=8).share(Group(rank, 4)) for rank in range(4)]
    assert shares == [(0, 8), (0, 8), (8, 8), (8, 8)]


@pytest.mark.parametrize("size", [1, 2, 4, 6, 7])
def test_a_vocabulary_is_padded_with_zeros(size):
    spec = ParamSpec((1003, 4), torch.float32, ("out", "in"))
    table = torch.randn(1003, 4)
    together = torch.cat(pieces(table, spec, Shard.OUT, Extent(1003, padded=True), size))
    assert torch.equal(together[:1003], table)
    assert not together[1003:].any()
    assert together.shape[0] % size == 0


def test_a_vocabulary_smaller_than_the_group():
    spec = ParamSpec((3, 1), torch.float32, ("out", "in"))
    together = torch.cat(pieces(numbered((3, 1)) + 1, spec, Shard.OUT, Extent(3, padded=True), 5))
    assert together.flatten().tolist() == [1, 2, 3, 0, 0]


def test_groups_of_weights_are_not_separated():
    with pytest.raises(ValueError, match="groups of 4"):
        cut(numbered(SCALES.shape), SCALES, Shard.OUT, Extent(12), Group(0, 2))
