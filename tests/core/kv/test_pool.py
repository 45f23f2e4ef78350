from __future__ import annotations

from random import Random

from octavo.core.kv.hashing import PrefixTree
from octavo.core.kv.pool import BlockPool
from tests.core.kv.content import content_of


def test_a_block_goes_from_free_to_used_to_cached_to_evicted() -> None:
    tree, pool = PrefixTree(2, 1), BlockPool(1)
    root = tree.root()
    assert root is not None
    prefix = tree.child(root, content_of(tree, [1, 2], 0))
    assert prefix is not None
    block = pool.take()
    pool.keep(block, 0, prefix)
    assert (pool.num_free, pool.num_cached, prefix.blocks) == (0, 0, [block])
    pool.give_back(block)
    assert (pool.num_free, pool.num_cached, prefix.blocks) == (1, 1, [block])
    pool.share(block)
    assert (pool.num_free, pool.num_cached, pool.users) == (0, 0, [1])
    pool.give_back(block)
    assert pool.take() == block
    assert (pool.evictions, prefix.blocks, pool.content(block)) == (1, [-1], None)
    assert prefix.digest in pool.evicted


def test_what_was_given_back_first_is_evicted_first_and_plain_blocks_go_before() -> None:
    tree, pool = PrefixTree(1, 1), BlockPool(4)
    prefix = tree.root()
    blocks = [pool.take() for _ in range(4)]
    for i, block in enumerate(blocks[:3]):
        assert prefix is not None
        prefix = tree.child(prefix, content_of(tree, [i], 0))
        assert prefix is not None
        pool.keep(block, 0, prefix)
    for block in reversed(blocks):
        pool.give_back(block)
    assert [pool.take() for _ in range(4)] == [blocks[3], blocks[2], blocks[1], blocks[0]]


def test_counts_agree_whatever_happens() -> None:
    draw, tree, pool = Random(1), PrefixTree(1, 1), BlockPool(6)
    root = tree.root()
    assert root is not None
    held: list[int] = []
    alive = []
    for i in range(3000):
        move = draw.randrange(4)
        if move == 0 and pool.num_free:
            held.append(pool.take())
        elif move == 1 and held:
            pool.give_back(held.pop(draw.randrange(len(held))))
        elif move == 2 and held:
            block = draw.choice(held)
            if pool.content(block) is None:
                prefix = tree.child(root, content_of(tree, [i], 0))
                assert prefix is not None
                pool.keep(block, 0, prefix)
                alive.append(prefix)
            else:
                pool.share(block)
                held.append(block)
        elif move == 3:
            block = draw.randrange(6)
            if pool.content(block) is not None:
                pool.forget(block)
        assert pool.users == [held.count(block) for block in range(6)]
        assert pool.num_free == sum(count == 0 for count in pool.users)
        assert pool.num_cached == sum(count == 0 and pool.content(block) is not None for block, count in enumerate(pool.users))
        found = [prefix.blocks[0] for prefix in alive if prefix.blocks[0] >= 0]
        assert sorted(found) == [block for block in range(6) if pool.content(block) is not None]
    assert len(pool.evicted) <= 6
