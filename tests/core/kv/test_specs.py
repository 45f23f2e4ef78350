from __future__ import annotations

from random import Random

import pytest

from octavo.core.kv.specs import LatentSpec, PagedSpec, WindowSpec


def test_bytes_a_token_count_keys_and_values() -> None:
    assert PagedSpec(num_kv_heads=3, head_dim=64, dtype="float32").token_bytes == 2 * 3 * 64 * 4
    assert PagedSpec(num_kv_heads=8, head_dim=128, dtype="bfloat16").token_bytes == 2 * 8 * 128 * 2
    assert WindowSpec(num_kv_heads=1, head_dim=256, window=512, dtype="fp8").token_bytes == 512
    assert LatentSpec(512 + 64, "bfloat16").token_bytes == 1152


def test_full_attention_never_drops_and_stops_at_the_first_gap() -> None:
    spec = PagedSpec(1, 1)
    assert spec.droppable(1000, 4) == 0
    assert spec.peak_blocks(17, 3, 4) == 5
    cached = [True, True, False, True]
    assert spec.usable_prefix(cached.__getitem__, 4, 4) == (2, 0)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_a_window_keeps_exactly_what_later_tokens_read(window: int, block: int) -> None:
    spec = WindowSpec(1, 1, window)
    for computed in range(1, 40):
        first_read = max(0, computed - window + 1)  # by the next token, at position `computed`
        dropped = spec.droppable(computed, block)
        assert dropped * block <= first_read < (dropped + 1) * block or first_read == 0 == dropped


def test_the_longest_prefix_of_a_window_needs_only_its_last_blocks() -> None:
    draw = Random(0)
    for _ in range(500):
        block, window, num_blocks = draw.randint(1, 4), draw.randint(1, 10), draw.randint(0, 8)
        cached = [draw.random() < 0.6 for _ in range(num_blocks)]
        spec = WindowSpec(1, 1, window)

        def usable(n: int, cached: list[bool] = cached, block: int = block, window: int = window) -> bool:
            first = max(0, n * block - window + 1) // block
            return all(cached[first:n])

        best = max(n for n in range(num_blocks + 1) if usable(n))
        found, skipped = spec.usable_prefix(cached.__getitem__, num_blocks, block)
        assert found == best
        assert skipped == spec.droppable(found * block, block)
        assert all(cached[skipped:found])


@pytest.mark.parametrize("window", [1, 3, 4, 9])
def test_a_window_never_holds_more_than_its_peak(window: int) -> None:
    draw = Random(window)
    spec = WindowSpec(1, 1, window)
    for _ in range(300):
        block, chunk, total = draw.randint(1, 4), draw.randint(1, 9), draw.randint(1, 40)
        computed = 0
        while computed < total:
            n = min(draw.randint(1, chunk), total - computed)
            held = -(-(computed + n) // block) - spec.droppable(computed, block)
            assert held <= spec.peak_blocks(total, chunk, block)
            computed += n
