from __future__ import annotations

from collections.abc import Sequence

from octavo.core.kv.hashing import PrefixTree
from octavo.types import MediaItem


def content_of(tree: PrefixTree, tokens: Sequence[int], block: int, media: Sequence[MediaItem] = ()) -> bytes:
    """What one block holds."""
    (found,) = tree.contents(tokens, block, block + 1, media)
    return found
