"""What one layer keeps per token, and what follows from it for blocks. Value objects: layers return them, the layout groups them.

Blocks are counted as entries of a block table: entry `i` covers the tokens `[i * block_tokens, (i + 1) * block_tokens)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
SCALE_BYTES = {"int8": 2}  # of the float16 scale that goes with each token's K, and its V, of each head


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class KVSpec(Protocol):
    """What one layer keeps: bytes a token, and the blocks that a sequence needs, drops and can take over from the cache."""

    @property
    def dtype(self) -> str:
        """The format of what is kept, see octavo.ops.kv_format."""
        ...

    @property
    def token_bytes(self) -> int:
        """Bytes that one layer keeps for one token."""
        ...

    def block_shape(self, block_tokens: int) -> tuple[int, int, int, int]:
        """Of a block's numbers in memory: keys and values, tokens, heads, numbers of each."""
        ...

    def table_blocks(self, num_tokens: int, block_tokens: int) -> int:
        """Entries of a block table that covers `num_tokens` tokens."""
        ...

    def peak_blocks(self, num_tokens: int, chunk: int, block_tokens: int) -> int:
        """Most blocks held at once while a sequence grows to `num_tokens` in steps of at most `chunk` tokens."""
        ...

    def droppable(self, num_computed: int, block_tokens: int) -> int:
        """Leading blocks that no later token reads once `num_computed` tokens are computed."""
        ...

    def usable_prefix(self, cached: Callable[[int], bool], num_blocks: int, block_tokens: int) -> tuple[int, int]:
        """Longest prefix of at most `num_blocks` blocks that cached blocks allow, and how many of its leading blocks are not needed."""
        ...


class _KeysAndValues:
    """Of every token a key and a value for each KV head."""

    __slots__ = ()
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """With the scales of both."""
        return 2 * self.num_kv_heads * (self.head_dim * DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0))

    def block_shape(self, block_tokens: int) -> tuple[int, int, int, int]:
        return 2, block_tokens, self.num_kv_heads, self.head_dim


class _Everything:
    """All tokens stay."""

    __slots__ = ()

    def table_blocks(self, num_tokens: int, block_tokens: int) -> int:
        return ceil_div(num_tokens, block_tokens)

    def peak_blocks(self, num_tokens: int, chunk: int, block_tokens: int) -> int:
        return ceil_div(num_tokens, block_tokens)

    def droppable(self, num_computed: int, block_tokens: int) -> int:
        return 0

    def usable_prefix(self, cached: Callable[[int], bool], num_blocks: int, block_tokens: int) -> tuple[int, int]:
        for i in range(num_blocks):
            if not cached(i):
                return i, 0
        return num_blocks, 0


@dataclass(frozen=True, slots=True)
class PagedSpec(_KeysAndValues, _Everything):
    """Full attention: keys and values of every token stay."""

    num_kv_heads: int
    head_dim: int
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class LatentSpec(_Everything):
    """Multi-head latent attention: of every token one vector stays, from which keys and values of all heads come."""

    width: int  # numbers in the vector, with the part of the keys that all heads share
    dtype: str = "float32"

    @property
    def token_bytes(self) -> int:
        return self.width * DTYPE_BYTES[self.dtype]

    def block_shape(self, block_tokens: int) -> tuple[int, int, int, int]:
        return 1, block_tokens, 1, self.width


@dataclass(frozen=True, slots=True)
class WindowSpec(_KeysAndValues):
    """Sliding window: a token reads itself and the `window - 1` tokens before it, so leading blocks return to the pool."""

    num_kv_heads: int
    head_dim: int
    window: int
    dtype: str = "float32"

    def table_blocks(self, num_tokens: int, block_tokens: int) -> int:
        return ceil_div(num_tokens, block_tokens)

    def peak_blocks(self, num_tokens: int, chunk: int, block_tokens: int) -> int:
        # A step of `chunk` tokens holds them and the window before them; neither end lies on a block's border.
        return min(ceil_div(num_tokens, block_tokens), ceil_div(self.window - 1 + chunk, block_tokens) + 1)

    def droppable(self, num_computed: int, block_tokens: int) -> int:
        return max(0, num_computed - self.window + 1) // block_tokens

    def usable_prefix(self, cached: Callable[[int], bool], num_blocks: int, block_tokens: int) -> tuple[int, int]:
        need = ceil_div(self.window - 1, block_tokens)
        run = 0
        for i in range(num_blocks, 0, -1):
            if run >= need:
                break
            if cached(i - 1):
                run += 1
            else:
                run, num_blocks = 0, i - 1
        return num_blocks, max(0, num_blocks - need)
