"""The KV memory of sequences: block tables, and finding blocks of prefixes that were computed before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.core.kv.hashing import Digest, Prefix, PrefixTree, scope_of, sha256
from octavo.core.kv.layout import KVLayout
from octavo.core.kv.misses import Misses
from octavo.core.kv.pool import BlockPool
from octavo.core.plan import Growth
from octavo.core.sequence import Sequence

NO_BLOCK = 0  # stands in a table where the block is not held; nobody reads there


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks of a sequence's prefix: valid until the pool changes, so it is looked up anew for every attempt to admit."""

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]  # per group
    dropped: tuple[int, ...]  # per group, leading entries that no later token reads


class KVCache:
    """Who holds which blocks, and which prefixes can be found again: the scheduler's one face to KV memory."""

    def __init__(self, layout: KVLayout, enable_prefix_caching: bool = True, digest: Digest = sha256) -> None:
        self.layout = layout
        self.pool = BlockPool(layout.num_blocks)
        self.enabled = enable_prefix_caching
        self.tree = PrefixTree(layout.block_tokens, len(layout.groups), digest)
        self.misses = Misses(self.tree)
        self.queries = 0  # tokens looked up
        self.hits = 0  # tokens found
        self.collisions = 0
        self._no_hit = Hit(0, ((),) * len(layout.groups), (0,) * len(layout.groups))
        self._sizes = [group.block_tokens for group in layout.groups]
        self._least_surplus = self._sizes[0] if len(set(self._sizes)) == 1 else 0  # tokens below the capacity, for a block to be too many
        self._entries = [group.spec.table_blocks for group in layout.groups]
        self._units = [group.block_tokens // layout.block_tokens for group in layout.groups]  # of the chain, per block of the group
        self._windowed = [
            (number, group) for number, group in enumerate(layout.groups) if group.spec.droppable(1 << 40, group.block_tokens) > 0
        ]

        windowed = {number for number, _ in self._windowed}
        self._narrowing = sorted(range(len(layout.groups)), key=lambda number: number in windowed)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1 - self.pool.num_free / self.pool.num_blocks

    @property
    def match_tokens(self) -> int:
        """Prefixes are found in multiples of so many tokens: whole blocks of every group."""
        return math.lcm(*self._sizes)

    # ---- room for a sequence

    def fits(self, hit: Hit, num_tokens: int, chunk: int, spare_blocks: int = 0) -> bool:
        """Whether a sequence that starts from `hit` could now grow to `num_tokens`, with blocks to spare in each group."""
        pool = self.pool
        held = idle = 0
        for table, dropped in zip(hit.tables, hit.dropped):
            held += len(table) - dropped
            idle += sum(pool.users[block] == 0 for block in table[dropped:])
        spare = spare_blocks * len(self._units)
        return max(0, self.layout.peak_blocks(num_tokens, chunk) - held) + idle + spare <= pool.num_free

    def grow(self, seq: Sequence, num_tokens: int) -> Many[Growth] | None:
        """Cover `num_tokens` tokens: the new table entries, or None, with nothing taken, if there is no room."""
        if self._windowed:
            self._drop(seq)
        if num_tokens <= seq.capacity:
            return ()
        pool = self.pool
        missing = [entries(num_tokens, size) - len(table) for entries, size, table in zip(self._entries, self._sizes, seq.blocks)]
        if sum([n for n in missing if n > 0]) > pool.num_free:
            return None
        grown: list[Growth] = []
        for number, (table, n) in enumerate(zip(seq.blocks, missing)):
            if n > 0:
                new = (pool.take(),) if n == 1 else tuple([pool.take() for _ in range(n)])
                grown.append(Growth(seq.row, number, len(table), new))
                table += new
        self._measure(seq)
        return grown

    def trim(self, seq: Sequence) -> None:
        """Give back the blocks past what is planned: drafts were refused."""
        if seq.planned > seq.capacity - self._least_surplus:
            return
        for entries, size, table in zip(self._entries, self._sizes, seq.blocks):
            keep = entries(seq.planned, size)
            if keep < len(table):
                for block in reversed(table[keep:]):
                    self.pool.give_back(block)
                del table[keep:]
        self._measure(seq)

    def release(self, seq: Sequence) -> None:
        """Give all blocks back, tails first, after letting others find them: blocks of output are registered here and not while decoding,
        which keeps hashing out of the steps; hardly anybody could use them earlier."""
        self.register(seq, min(seq.planned, len(seq.tokens) - 1))
        give_back = self.pool.give_back
        for number, table in enumerate(seq.blocks):
            for block in reversed(table[seq.dropped[number] :]):
                give_back(block)
            table.clear()
            seq.dropped[number] = 0
        seq.registered = seq.capacity = seq.room = 0

    def _drop(self, seq: Sequence) -> None:
        computed = seq.planned - seq.unsure
        for number, group in self._windowed:
            drop = group.spec.droppable(computed, group.block_tokens)
            first = seq.dropped[number]
            if drop > first:
                for block in seq.blocks[number][first:drop]:
                    self.pool.give_back(block)
                seq.dropped[number] = drop

    def _measure(self, seq: Sequence) -> None:
        seq.capacity = min([len(table) * size for size, table in zip(self._sizes, seq.blocks)])
        seq.room = min(seq.bound, seq.capacity)

    # ---- prefixes

    def enter(self, seq: Sequence) -> None:
        """A new sequence: decide with whom it shares blocks. With caching off, only the continuations of one request share."""
        seq.private = not self.enabled
        seq.caching = self.enabled or seq.request.params.n > 1

    def leave(self, seq: Sequence) -> None:
        seq.chain = []

    def lookup(self, seq: Sequence) -> Hit:
        """The longest usable prefix of at most all tokens but one: shrunk to each group's longest until every group agrees.

        Hashes no further than to the first block that is missing, where a group of full attention comes first.
        """
        if not self._reads(seq):
            return self._no_hit
        num_units = (len(seq.tokens) - 1) // self.tree.block_tokens
        dropped = [0] * len(self._units)
        agreed = turn = 0
        while agreed < len(self._units):
            number = self._narrowing[turn % len(self._units)]
            units, group = self._units[number], self.layout.groups[number]

            def cached(i: int, number: int = number, units: int = units) -> bool:
                chain, end = self._chain(seq, (i + 1) * units), (i + 1) * units
                return len(chain) >= end and chain[end - 1].blocks[number] >= 0

            usable, dropped[number] = group.spec.usable_prefix(cached, num_units // units, group.block_tokens)
            agreed = agreed + 1 if usable * units == num_units else 1
            num_units = usable * units
            turn += 1
        if num_units == 0:
            return self._no_hit
        tables = [
            (NO_BLOCK,) * skip + tuple(seq.chain[i].blocks[number] for i in range((skip + 1) * units - 1, num_units, units))
            for number, (units, skip) in enumerate(zip(self._units, dropped))
        ]
        return Hit(num_units * self.tree.block_tokens, tuple(tables), tuple(dropped))

    def hold(self, seq: Sequence, hit: Hit) -> None:
        """Start the sequence's tables from the hit."""
        for number, table in enumerate(hit.tables):
            for block in table[hit.dropped[number] :]:
                self.pool.share(block)
            seq.blocks[number] = list(table)
            seq.dropped[number] = hit.dropped[number]
        seq.planned = hit.num_tokens
        seq.registered = hit.num_tokens // self.tree.block_tokens
        self._measure(seq)

    def account(self, seq: Sequence, hit: Hit) -> None:
        """Count the first look-up of a sequence and say why it gave no more."""
        if not self.enabled:
            return
        seq.cached_tokens = hit.num_tokens
        self.queries += len(seq.tokens)
        self.hits += hit.num_tokens
        if not self._reads(seq):
            seq.miss = self.misses.off()
            return
        unit = hit.num_tokens // self.tree.block_tokens
        if unit < len(seq.chain):
            missed = seq.chain[unit]
            evicted = missed.digest in self.pool.evicted or any(block >= 0 for block in missed.blocks)
            seq.miss = self.misses.explain(missed, unit, evicted)

    def register(self, seq: Sequence, num_tokens: int) -> list[int]:
        """The first `num_tokens` tokens are known and their KV is written by steps submitted: let others find the whole blocks."""
        new: list[int] = []
        if seq.caching:
            target = (num_tokens if num_tokens < seq.num_prompt or not seq.private else seq.num_prompt) // self.tree.block_tokens
            chain = self._chain(seq, target)
            target = min(target, len(chain))
            pool = self.pool
            for number, (units, table) in enumerate(zip(self._units, seq.blocks)):
                for i in range(max(seq.registered // units, seq.dropped[number]), target // units):
                    prefix = chain[(i + 1) * units - 1]
                    if prefix.blocks[number] < 0:
                        pool.keep(table[i], number, prefix)
                        new.append(table[i])
                        self.misses.note(prefix)
            if target > seq.registered:
                seq.registered = target
        return new

    def unregister(self, blocks: Iterable[int]) -> None:
        """Nobody may find these blocks any more: what was to be written there was not, or is in doubt."""
        for block in blocks:
            if self.pool.content(block) is not None:
                self.pool.forget(block)

    def discard(self, seq: Sequence) -> None:
        """Nobody may find anything of this sequence any more, nor what it held of others."""
        for table, dropped in zip(seq.blocks, seq.dropped):
            self.unregister(table[dropped:])
        seq.caching = False

    def reset(self) -> bool:
        """Forget every cached block; False, with nothing done, while sequences hold some."""
        if self.pool.num_free < self.pool.num_blocks:
            return False
        self.pool.forget_all()
        self.misses.clear()
        return True

    def _reads(self, seq: Sequence) -> bool:
        return seq.caching and (seq.index > 0 or not seq.request.params.skip_reading_prefix_cache)

    def _chain(self, seq: Sequence, num_units: int) -> list[Prefix]:
        """The sequence's prefixes up to `num_units` units; shorter where a digest collides, and then for good."""
        chain = seq.chain
        if not seq.caching or len(chain) >= num_units:
            return chain
        parent = chain[-1] if chain else self.tree.root(*scope_of(seq.request, seq.private))
        for content in self.tree.contents(seq.tokens, len(chain), num_units, seq.request.media):
            parent = self.tree.child(parent, content) if parent else None
            if parent is None:
                self.collisions += 1
                seq.caching = False
                break
            chain.append(parent)
        return chain
