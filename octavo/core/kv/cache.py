"""The KV memory of sequences: block tables, and finding blocks of prefixes that were computed before."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.core.kv.hashing import Digest, Prefix, PrefixTree, scope_of, sha256
from octavo.core.kv.layout import KVLayout
from octavo.core.kv.misses import Misses
from octavo.core.kv.pool import BlockPool
from octavo.core.sequence import Sequence

NO_BLOCK = 0  # stands in a table where the block is not held; nobody reads there


@dataclass(frozen=True, slots=True)
class Hit:
    """Cached blocks of a sequence's prefix: valid until the pool changes, so it is looked up anew for every attempt to admit."""

    num_tokens: int
    tables: tuple[tuple[int, ...], ...]  # per group
    dropped: tuple[int, ...]  # per group, leading entries that no later token reads


class KVCache:
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
        self._units = [group.block_tokens // layout.block_tokens for group in layout.groups]  # of the chain, per block of the group
        self._windowed = [
            (number, group) for number, group in enumerate(layout.groups) if group.spec.droppable(1 << 40, group.block_tokens) > 0
        ]

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1 - self.pool.num_free / self.pool.num_blocks

    # ---- room for a sequence

    def fits(self, hit: Hit, num_tokens: int, chunk: int) -> bool:
        """Whether a sequence that starts from `hit` could now grow to `num_tokens`."""
        pool = self.pool
        held = idle = 0
        for table, dropped in zip(hit.tables, hit.dropped):
            held += len(table) - dropped
            idle += sum(pool.users[block] == 0 for block in table[dropped:])
        return max(0, self.layout.peak_blocks(num_tokens, chunk) - held) + idle <= pool.num_free

    def grow(self, seq: Sequence, num_tokens: int) -> Many[tuple[int, int, tuple[int, ...]]] | None:
        """Cover `num_tokens` tokens: the new table entries as (group, first, blocks), or None, with nothing taken, if there is no room."""
        if self._windowed:
            self._drop(seq)
        if num_tokens <= seq.capacity:
            return ()
        missing = [
            group.spec.table_blocks(num_tokens, group.block_tokens) - len(table) for group, table in zip(self.layout.groups, seq.blocks)
        ]
        if sum(n for n in missing if n > 0) > self.pool.num_free:
            return None
        grown: list[tuple[int, int, tuple[int, ...]]] = []
        take = self.pool.take
        for number, n in enumerate(missing):
            if n > 0:
                table = seq.blocks[number]
                new = tuple([take() for _ in range(n)])
                grown.append((number, len(table), new))
                table.extend(new)
        self._measure(seq)
        return grown

    def trim(self, seq: Sequence) -> None:
        """Give back the blocks past what is planned: drafts were refused."""
        for group, table in zip(self.layout.groups, seq.blocks):
            keep = group.spec.table_blocks(seq.planned, group.block_tokens)
            if keep < len(table):
                for block in reversed(table[keep:]):
                    self.pool.give_back(block)
                del table[keep:]
        self._measure(seq)

    def release(self, seq: Sequence) -> None:
        """Give all blocks back, tails first."""
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
        seq.capacity = min(len(table) * group.block_tokens for group, table in zip(self.layout.groups, seq.blocks))
        seq.room = min(seq.bound, seq.capacity)

    # ---- prefixes

    def enter(self, seq: Sequence) -> None:
        """A new sequence: decide with whom it shares blocks. With caching off, only the continuations of one request share."""
        seq.private = not self.enabled
        seq.caching = self.enabled or seq.request.params.n > 1

    def leave(self, seq: Sequence) -> None:
        seq.chain = []

    def lookup(self, seq: Sequence) -> Hit:
        """The longest usable prefix of at most all tokens but one: shrunk to each group's longest until every group agrees."""
        if not self._reads(seq):
            return self._no_hit
        num_units = (len(seq.tokens) - 1) // self.tree.block_tokens
        chain = self._chain(seq, num_units)
        num_units = min(num_units, len(chain))
        dropped = [0] * len(self._units)
        before = -1
        while num_units != before:
            before = num_units
            for number, group in enumerate(self.layout.groups):
                units = self._units[number]

                def cached(i: int, number: int = number, units: int = units) -> bool:
                    return chain[(i + 1) * units - 1].blocks[number] >= 0

                usable, dropped[number] = group.spec.usable_prefix(cached, num_units // units, group.block_tokens)
                num_units = usable * units
        if num_units == 0:
            return self._no_hit
        tables = [
            (NO_BLOCK,) * skip + tuple(chain[i].blocks[number] for i in range((skip + 1) * units - 1, num_units, units))
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
        self._set_mark(seq)
        self._measure(seq)

    def account(self, seq: Sequence, hit: Hit) -> None:
        """Count the first look-up of a sequence and say why it gave no more."""
        seq.cached_tokens = hit.num_tokens
        if not self.enabled:
            return
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
        unit = self.tree.block_tokens
        target = min(num_tokens, seq.num_prompt if seq.private else num_tokens) // unit
        target = min(target, len(self._chain(seq, target)))
        new: list[int] = []
        for number, units in enumerate(self._units):
            table = seq.blocks[number]
            for i in range(max(seq.registered // units, seq.dropped[number]), target // units):
                prefix = seq.chain[(i + 1) * units - 1]
                if prefix.blocks[number] < 0 and self.pool.content(table[i]) is None:
                    self.pool.keep(table[i], number, prefix)
                    new.append(table[i])
                    self.misses.note(prefix)
        seq.registered = max(seq.registered, target)
        self._set_mark(seq)
        return new

    def unregister(self, blocks: Many[int]) -> None:
        for block in blocks:
            if self.pool.content(block) is not None:
                self.pool.forget(block)

    def reset(self) -> bool:
        """Forget every cached block; False, with nothing done, while sequences hold some."""
        if self.pool.num_free < self.pool.num_blocks:
            return False
        self.pool.forget_all()
        self.misses.clear()
        return True

    def _set_mark(self, seq: Sequence) -> None:
        """Past the mark something is due: the next block can be registered, or the sequence has its full length."""
        seq.mark = min(seq.bound, (seq.registered + 1) * self.tree.block_tokens) if seq.caching else seq.bound

    def _reads(self, seq: Sequence) -> bool:
        return seq.caching and (seq.index > 0 or not seq.request.params.skip_reading_prefix_cache)

    def _chain(self, seq: Sequence, num_units: int) -> list[Prefix]:
        """The sequence's prefixes up to `num_units` units; shorter where a digest collides, and then for good."""
        chain = seq.chain
        if not seq.caching:
            return chain
        media = seq.request.media
        while len(chain) < num_units:
            parent = chain[-1] if chain else self.tree.root(*scope_of(seq.request, seq.private))
            node = None if parent is None else self.tree.child(parent, self.tree.content(seq.tokens, len(chain), media))
            if node is None:
                self.collisions += 1
                seq.caching = False
                break
            chain.append(node)
        return chain
