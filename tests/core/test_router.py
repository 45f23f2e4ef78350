"""Which replica gets a request."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo.core.router import Load, Router, prefix_names


def test_equals_take_turns():
    router = Router(4)
    assert [router.choose(10) for _ in range(8)] == [0, 1, 2, 3] * 2


def test_what_was_sent_counts_until_the_replica_reports():
    router = Router(2)
    router.report(1, Load(num_running=6))
    assert [router.choose(10) for _ in range(3)] == [0, 0, 1], "four running are worth one that waits"
    router.report(0, Load(num_running=2))
    assert router.choose(10) == 0, "its two have been admitted and run"


def test_among_equals_fewer_tokens_on_the_way_then_the_emptier_memory():
    router = Router(2)
    assert router.choose(8000) == 0
    assert router.choose(10) == 1
    assert router.choose(10) == 1, "as many requests, fewer tokens"
    router = Router(2)
    router.report(0, Load(kv_usage=0.9))
    router.report(1, Load(kv_usage=0.2))
    assert router.choose(10) == 1


def test_a_full_replica_is_passed_over():
    router = Router(3)
    router.report(0, Load(num_waiting=5, num_running=10))
    counts = Counter(router.choose(100) for _ in range(8))
    assert counts[0] == 0
    assert counts[1] == counts[2] == 4


def test_alike_beginnings_go_to_one_replica_until_it_has_too_much_to_do():
    router = Router(4, affinity=2)
    home = router.choose(100, ["system prompt"])
    assert [router.choose(100, ["system prompt"]) for _ in range(2)] == [home, home]
    assert router.choose(100, ["system prompt"]) != home, "three wait there, none elsewhere"
    plain = Router(4)
    assert len({plain.choose(100, ["system prompt"]) for _ in range(4)}) == 4, "without affinity nobody looks at beginnings"


def test_a_conversation_goes_where_its_longest_prefix_is():
    router = Router(2, affinity=1)
    first, second = [0] * 64 + [1] * 200, [0] * 64 + [2] * 200
    homes = [router.choose(264, prefix_names(text, 16)) for text in (first, second)]
    router.report(0, Load())
    router.report(1, Load())
    assert homes == [0, 0], "they share the first blocks, and one more may wait there"
    moved = [router.choose(264, prefix_names(second, 16)) for _ in range(3)][-1]
    assert moved == 1
    router.report(0, Load())
    router.report(1, Load())
    assert router.choose(400, prefix_names(second + [3] * 100, 16)) == moved
    router.report(moved, Load())
    assert router.choose(400, prefix_names(first + [3] * 100, 16)) == homes[0]


def test_a_prefix_is_named_by_its_whole_blocks():
    assert prefix_names([1] * 63, 16) == []
    assert len(prefix_names([1] * 1000, 16)) == 4, "64, 128, 256 and 512 tokens"
    assert prefix_names([1] * 64 + [2], 16) == prefix_names([1] * 64 + [3], 16)
    assert prefix_names([1] * 64, 16, "mine") != prefix_names([1] * 64, 16, "yours")


def test_a_word_that_crossed_a_request_does_not_know_it():
    router = Router(2)
    assert router.choose(10) == 0
    known = router.num_sent(0)
    assert [router.choose(10), router.choose(10)] == [1, 0]
    router.report(0, Load(), known)
    router.report(1, Load(), 1)
    assert router.choose(10) == 1, "one is still on the way to 0"


def test_memory_that_few_long_ones_fill_counts_too():
    router = Router(2)
    router.report(0, Load(num_running=4, kv_usage=0.9))
    router.report(1, Load(num_running=6, kv_usage=0.1))
    assert router.choose(10) == 1


def test_it_needs_a_replica():
    with pytest.raises(ValueError, match="at least 1"):
        Router(0)
