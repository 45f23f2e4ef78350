"""Names of prefixes: SHA-256 chained over blocks of tokens, with media, adapter and salt; equal in every process.

A `Prefix` is a node of a tree: one block of tokens after its parent. Nodes are interned by digest, and a digest that is already taken by
other content gives no node at all, so even a colliding hash can never join two different prefixes (a node keeps its ancestors alive).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from sys import byteorder
from weakref import WeakValueDictionary

from octavo.types import MediaItem, Request

Digest = Callable[[bytes], bytes]

RECENT_CHILDREN = 4  # contents remembered a node, to say where a miss begins to differ
TOKEN_BYTES = array("I").itemsize


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Prefix:
    """One block of tokens after its parent. `blocks[group]` is the pool's block that holds its KV, or -1."""

    __slots__ = ("__weakref__", "blocks", "content", "digest", "parent", "recent")

    def __init__(self, digest: bytes, parent: Prefix | None, content: bytes, num_groups: int) -> None:
        self.digest = digest
        self.parent = parent
        self.content = content
        self.blocks = [-1] * num_groups
        self.recent: tuple[bytes, ...] = ()  # contents of its newest children


class PrefixTree:
    """Interns prefixes. It holds none of them: they live as long as a block, a sequence or a descendant refers to them."""

    def __init__(self, block_tokens: int, num_groups: int, digest: Digest = sha256) -> None:
        self.block_tokens = block_tokens
        self.num_groups = num_groups
        self._digest = digest
        self._nodes: WeakValueDictionary[bytes, Prefix] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, *scope: str | None) -> Prefix | None:
        """The empty prefix of a scope: adapter (an id of one loading, not a name that may be loaded anew), salt and the like."""
        parts = [b"octavo prefix", str(self.block_tokens).encode()]
        for text in scope:
            data = b"-" if text is None else b"+" + text.encode()
            parts += [str(len(data)).encode(), data]
        return self._intern(None, b":".join(parts))

    def child(self, parent: Prefix, content: bytes) -> Prefix | None:
        """The prefix one block longer; None if its digest belongs to something else."""
        return self._intern(parent, content)

    def contents(self, tokens: Sequence[int], first: int, end: int, media: Sequence[MediaItem] = ()) -> Iterator[bytes]:
        """What the blocks number `first` to `end` of a sequence hold: their token ids, then whatever media cover a part of them."""
        size = self.block_tokens
        ids = array("I", tokens[first * size : end * size])
        if byteorder == "big":
            ids.byteswap()
        packed, width = ids.tobytes(), size * TOKEN_BYTES
        for start in range(first * size, end * size, size):
            at = start * TOKEN_BYTES - first * width
            data = packed[at : at + width]
            for item in media:
                if item.offset < start + size and start < item.offset + item.length:
                    data += f"|{item.kind}:{item.content_hash}:{item.offset - start}".encode()
            yield data

    def note(self, parent: Prefix, content: bytes) -> None:
        """The child of `parent` with this content has been cached: remember it at the parent."""
        if not parent.recent:
            parent.recent = (content,)
        elif content not in parent.recent:
            parent.recent = (content, *parent.recent[: RECENT_CHILDREN - 1])

    def shared_tokens(self, content: bytes, parent: Prefix) -> int:
        """How many leading tokens of `content` agree with the closest block cached after `parent`, below a whole block."""
        best = 0
        for other in parent.recent:
            agree = 0
            while agree < self.block_tokens and _token(content, agree) == _token(other, agree):
                agree += 1
            best = max(best, agree)
        return best

    def _intern(self, parent: Prefix | None, content: bytes) -> Prefix | None:
        digest = self._digest(parent.digest + content if parent else content)
        node = self._nodes.get(digest)
        if node is None:
            node = Prefix(digest, parent, content, self.num_groups)
            self._nodes[digest] = node
        elif node.parent is not parent or node.content != content:
            return None
        return node


def _token(content: bytes, i: int) -> bytes:
    return content[i * TOKEN_BYTES : (i + 1) * TOKEN_BYTES]


def scope_of(request: Request, private: bool) -> tuple[str | None, ...]:
    """What must agree besides tokens for two requests to share blocks; a private one shares among its own continuations only."""
    return (request.adapter, request.cache_salt, request.id if private else None)
