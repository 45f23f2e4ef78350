from __future__ import annotations

import pytest

from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import KVSpec, PagedSpec, WindowSpec

FULL = PagedSpec(4, 64, "bfloat16")
SLIDING = WindowSpec(4, 64, 512, "bfloat16")


def test_one_kind_of_layer_makes_one_group() -> None:
    layout = lay_out([FULL] * 30, 16, 30 * 16 * FULL.token_bytes * 100 + 5)
    assert len(layout.groups) == 1
    assert layout.layers_per_group == 30
    assert layout.num_blocks == 100
    assert layout.block_bytes == 16 * FULL.token_bytes
    assert layout.arena_bytes == 30 * 16 * FULL.token_bytes * 100
    assert layout.padding == 0
    assert [layout.place(layer) for layer in (0, 29)] == [(0, 0), (0, 29)]


def test_five_sliding_layers_to_one_full_become_six_equal_groups() -> None:
    specs: list[KVSpec] = [FULL if i % 6 == 5 else SLIDING for i in range(24)]
    layout = lay_out(specs, 16, 1 << 30)
    assert len(layout.groups) == 6
    assert {len(group.layers) for group in layout.groups} == {4}
    assert layout.padding == 0
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(24))
    places = {layout.place(layer) for layer in range(24)}
    assert places == {(group, buffer) for group in range(6) for buffer in range(4)}
    assert all(layout.groups[layout.place(layer)[0]].spec == specs[layer] for layer in range(24))


def test_layers_that_do_not_divide_are_padded_a_little() -> None:
    specs: list[KVSpec] = [FULL if i % 6 == 5 else SLIDING for i in range(26)]  # 22 sliding, 4 full
    layout = lay_out(specs, 16, 1 << 30)
    assert len(layout.groups) == 7
    assert layout.padding == pytest.approx(2 / 28)
    assert [len(group.layers) for group in layout.groups] == [4, 4, 4, 4, 4, 2, 4]


def test_padding_over_a_tenth_is_avoided_by_smaller_groups() -> None:
    layout = lay_out([FULL] * 3 + [SLIDING] * 4, 16, 1 << 30)
    assert layout.layers_per_group == 1
    assert layout.padding == 0


def test_smaller_layers_get_more_tokens_a_block() -> None:
    small = PagedSpec(1, 64, "bfloat16")
    layout = lay_out([FULL, FULL, small, small], 16, 1 << 20)
    by_spec = {group.spec: group.block_tokens for group in layout.groups}
    assert by_spec == {FULL: 16, small: 64}
    assert layout.padding == 0
    assert layout.block_tokens == 16


def test_a_layout_that_wastes_memory_is_refused_with_the_share() -> None:
    with pytest.raises(ValueError, match=r"waste 17%"):
        lay_out([PagedSpec(4, 64), PagedSpec(3, 64), PagedSpec(3, 64)], 16, 1 << 20)


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="kv_bytes = 1000 holds 0 blocks"):
        lay_out([FULL], 16, 1000)
    with pytest.raises(ValueError, match="no layer"):
        lay_out([], 16, 1000)
