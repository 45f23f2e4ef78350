"""Why the prefix cache gave no more: said per request in words, and counted by reason."""

from __future__ import annotations

from collections import Counter, OrderedDict

from octavo.core.kv.hashing import Prefix, PrefixTree

FIRST_BLOCKS = 4096  # first blocks remembered, to notice that only the scope differs


class Misses:
    """Reasons: `new` (never seen), `tokens` (differs from what is cached), `short` (shared, but under one block), `scope` (same tokens
    under another salt or adapter), `evicted`, `off` (the request ignores hits).

    The words never tell one scope about another: `scope` is counted but reads like `new` to the request.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self.counts: Counter[str] = Counter()
        self._tree = tree
        self._first: OrderedDict[bytes, bytes] = OrderedDict()  # content of a first block -> digest of its root

    def note(self, prefix: Prefix) -> None:
        """The prefix has been cached."""
        parent = prefix.parent
        assert parent is not None
        self._tree.note(parent, prefix.content)
        if parent.parent is None:
            self._first[prefix.content] = parent.digest
            self._first.move_to_end(prefix.content)
            if len(self._first) > FIRST_BLOCKS:
                self._first.popitem(last=False)

    def explain(self, missed: Prefix, unit: int, evicted: bool) -> str:
        """Count and word the miss of `missed`, which is unit number `unit` of its chain."""
        tree = self._tree
        assert missed.parent is not None
        start = unit * tree.block_tokens
        if evicted:
            self.counts["evicted"] += 1
            return f"evicted: block {unit} (from token {start}) was cached and has been given up for space"
        shared = tree.shared_tokens(missed.content, missed.parent)
        if 0 < shared < tree.block_tokens:
            self.counts["tokens" if unit else "short"] += 1
            after = f"differs from what is cached at token {start + shared}, in block {unit}"
            if unit:
                return f"tokens: {after}"
            return f"short: {after}; {shared} shared tokens are under one block of {tree.block_tokens}"
        if missed.parent.recent:
            self.counts["tokens"] += 1
            what = "media differ" if shared else f"differs from what is cached at token {start}"
            return f"tokens: {what}, in block {unit}"
        elsewhere = unit == 0 and self._first.get(missed.content, missed.parent.digest) != missed.parent.digest
        self.counts["scope" if elsewhere else "new"] += 1
        return f"new: nothing is cached from token {start} on, block {unit}"

    def off(self) -> str:
        self.counts["off"] += 1
        return "off: this request does not read the prefix cache"

    def clear(self) -> None:
        self._first.clear()
