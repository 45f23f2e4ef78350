"""The blocks: who uses each, which are free, and which free ones still hold something worth finding. Every operation is O(1)."""

from __future__ import annotations

from collections import OrderedDict

from octavo.core.kv.hashing import Prefix


class BlockPool:
    """Block ids `0 .. num_blocks - 1`. A block is used (`users > 0`), cached (no user, content kept, oldest evicted first) or free.

    Content is a `(group, Prefix)`: the prefix then names the block in `prefix.blocks[group]`. A block with content is never written again,
    and no block with more than one user is without content.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.users = [0] * num_blocks
        self.evictions = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._content: dict[int, tuple[int, Prefix]] = {}
        self.evicted: OrderedDict[bytes, None] = OrderedDict()  # digests of late, to tell "evicted" from "never seen"
        self._remembered = min(num_blocks, 65536)

    @property
    def num_free(self) -> int:
        """Blocks that `take` could give now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def take(self) -> int:
        """A block for writing, with one user. The caller has checked `num_free`."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._evict(block)
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more user of a block that has content."""
        if self.users[block] == 0:
            del self._cached[block]
        self.users[block] += 1

    def give_back(self, block: int) -> None:
        """One user less; what nobody uses is cached if it has content, else free. Give back tails first: they are evicted first."""
        left = self.users[block] - 1
        self.users[block] = left
        if left == 0:
            if block in self._content:
                self._cached[block] = None
            else:
                self._free.append(block)

    def keep(self, block: int, group: int, prefix: Prefix) -> None:
        """The used block now holds the last block of `prefix` in `group` and can be found there."""
        assert prefix.blocks[group] < 0
        assert block not in self._content
        prefix.blocks[group] = block
        self._content[block] = (group, prefix)

    def forget(self, block: int) -> None:
        """The block's content is not to be found any more (a failed step, a reset)."""
        group, prefix = self._content.pop(block)
        prefix.blocks[group] = -1
        if self.users[block] == 0:
            del self._cached[block]
            self._free.append(block)

    def content(self, block: int) -> tuple[int, Prefix] | None:
        return self._content.get(block)

    def forget_all(self) -> None:
        for block in list(self._content):
            self.forget(block)
        self.evicted.clear()

    def _evict(self, block: int) -> None:
        group, prefix = self._content.pop(block)
        prefix.blocks[group] = -1
        self.evictions += 1
        self.evicted[prefix.digest] = None
        if len(self.evicted) > self._remembered:
            self.evicted.popitem(last=False)
