from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
from struct import pack

from octavo.core.kv.hashing import PrefixTree, scope_of
from octavo.types import MediaItem, Request, SamplingParams
from tests.core.kv.content import content_of

CHAIN = """
from octavo.core.kv.hashing import PrefixTree
tree = PrefixTree(4, 1)
node = tree.root("adapter", None)
for block in range(2):
    node = tree.child(node, next(tree.contents(range(8), block, block + 1)))
print(node.digest.hex())
"""


def test_a_chain_has_one_name_in_every_process() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", CHAIN], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    names = {run.stdout.strip() for run in runs}
    root = hashlib.sha256(b"octavo prefix:4:8:+adapter:1:-").digest()
    first = hashlib.sha256(root + pack("<4I", 0, 1, 2, 3)).digest()
    assert names == {hashlib.sha256(first + pack("<4I", 4, 5, 6, 7)).hexdigest()}


def test_every_part_of_the_key_counts() -> None:
    tree = PrefixTree(4, 1)
    tokens = [1, 2, 3, 4]
    scopes = [(None, None, None), ("a", None, None), (None, "a", None), (None, None, "a"), ("", None, None), ("a", "b", None)]
    roots = [tree.root(*scope) for scope in scopes]
    contents = [
        content_of(tree, tokens, 0),
        content_of(tree, [1, 2, 3, 5], 0),
        content_of(tree, tokens, 0, [MediaItem("image", "h1", 1, 2)]),
        content_of(tree, tokens, 0, [MediaItem("image", "h2", 1, 2)]),
        content_of(tree, tokens, 0, [MediaItem("image", "h1", 2, 2)]),
        content_of(tree, tokens, 0, [MediaItem("video", "h1", 1, 2)]),
        content_of(tree, tokens, 0, [MediaItem("image", "h1", 1, 1), MediaItem("image", "h2", 2, 1)]),
    ]
    nodes = [tree.child(root, content) for root in roots if root is not None for content in contents]
    digests = {node.digest for node in nodes if node is not None}
    assert len(digests) == len(scopes) * len(contents)


def test_media_outside_a_block_do_not_change_it() -> None:
    tree = PrefixTree(4, 1)
    tokens = list(range(12))
    item = MediaItem("image", "h", 4, 4)
    assert content_of(tree, tokens, 0, [item]) == content_of(tree, tokens, 0)
    assert content_of(tree, tokens, 1, [item]) != content_of(tree, tokens, 1)
    assert content_of(tree, tokens, 2, [item]) == content_of(tree, tokens, 2)


def test_equal_prefixes_are_one_node_and_go_with_their_users() -> None:
    tree = PrefixTree(2, 1)
    root = tree.root()
    assert root is not None
    node = tree.child(root, content_of(tree, [1, 2], 0))
    assert node is tree.child(root, content_of(tree, [1, 2], 0))
    assert tree.root() is root
    assert len(tree) == 2
    del node, root
    gc.collect()
    assert len(tree) == 0


def test_a_colliding_hash_joins_nothing() -> None:
    tree = PrefixTree(2, 1, digest=lambda data: b"same")
    root = tree.root()
    assert root is not None
    assert tree.root("other") is None
    assert tree.child(root, content_of(tree, [1, 2], 0)) is None

    tails = PrefixTree(2, 1, digest=lambda data: data[-8:])  # a block's name says nothing of the blocks before it
    root = tails.root()
    assert root is not None
    one, two = (tails.child(root, content_of(tails, tokens, 0)) for tokens in ([1, 2], [3, 4]))
    assert one is not None
    assert two is not None
    assert tails.child(one, content_of(tails, [5, 6], 0)) is not None or tails.child(two, content_of(tails, [5, 6], 0)) is not None
    after_one = tails.child(one, content_of(tails, [5, 6], 0))
    assert after_one is not None
    assert tails.child(two, content_of(tails, [5, 6], 0)) is None


def test_the_scope_of_a_request() -> None:
    request = Request("r", (1,), SamplingParams(), adapter="a#7", cache_salt="s")
    assert scope_of(request, private=False) == ("a#7", "s", None)
    assert scope_of(request, private=True) == ("a#7", "s", "r")
