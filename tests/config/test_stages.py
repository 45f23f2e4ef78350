import pytest

from octavo.config.stages import stage


def test_every_layer_is_on_one_stage_in_order():
    for num_layers in range(1, 65):
        for size in range(1, min(8, num_layers) + 1):
            stages = [stage(num_layers, rank, size) for rank in range(size)]
            assert [layer for one in stages for layer in one.layers] == list(range(num_layers))
            counts = [len(one.layers) for one in stages]
            assert max(counts) - min(counts) <= 1
            assert [one.first for one in stages] == [True] + [False] * (size - 1)
            assert [one.last for one in stages] == [False] * (size - 1) + [True]


def test_the_stage_with_the_head_is_not_the_longer_one():
    assert [len(stage(10, rank, 3).layers) for rank in range(3)] == [3, 4, 3]
    assert [len(stage(11, rank, 3).layers) for rank in range(3)] == [4, 4, 3]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="at most 3"):
        stage(3, 0, 4)
