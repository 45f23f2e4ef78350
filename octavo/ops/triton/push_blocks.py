"""Sums of larger tensors over the GPUs of one host, in one launch: whole blocks are written to all others, then one flag for each block.

The packets of `push` carry as many bytes of call numbers as of data. Here the link carries data alone; what that costs is a fence
between a block and its flag, so small tensors stay with packets. For n bytes on R ranks a rank sends n (R - 1) bytes, which for two ranks
is the least that there can be.

Memory of one rank: data as words of 4 bytes [2, R, capacity], then flags of 4 bytes [2, R, MAX_PROGRAMS]; by the call's parity, then by who
wrote. Why two calls suffice, and why grids of different sizes may follow each other, stands in `push`.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.words import KINDS, add_words, as_words

BLOCK = 2048  # words of data of a program
MAX_PROGRAMS = 2048
NUM_WARPS = 8


@triton.jit
def _push_blocks(
    x, y, places, calls, num_words, capacity, RANK: tl.constexpr, RANKS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr,
):  # fmt: skip
    """KIND: as what words are summed (`KINDS`)."""
    program = tl.program_id(0)
    call = tl.load(calls + program) + 1
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_words
    word = tl.load(x + at, mask=inside, other=0)
    half = (call & 1) * RANKS
    flags = 2 * RANKS * capacity
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = tl.multiple_of(tl.load(places + other), 16).to(tl.pointer_type(tl.int32))
            tl.store(theirs + (half + RANK) * capacity + at, word, mask=inside)
    tl.debug_barrier()  # all threads' data is written before one thread says so
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = tl.multiple_of(tl.load(places + other), 16).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(theirs + flags + (half + RANK) * MAX_PROGRAMS + program, call, sem="release", scope="sys")
    mine = tl.multiple_of(tl.load(places + RANK), 16).to(tl.pointer_type(tl.int32))
    low = tl.zeros((BLOCK,), tl.float32)
    high = tl.zeros((BLOCK,), tl.float32)
    for source in tl.static_range(RANKS):  # in the order of ranks, so that all have the same sum
        if source == RANK:
            part = word
        else:
            flag = mine + flags + (half + source) * MAX_PROGRAMS + program
            while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != call:
                pass
            tl.debug_barrier()
            part = tl.load(mine + (half + source) * capacity + at, mask=inside, other=0, cache_modifier=".cg")
        low, high = add_words(low, high, part, KIND)
    tl.store(y + at, as_words(low, high, KIND), mask=inside)
    tl.store(calls + program, call)


class PushBlocks:
    """One rank's end. `places` [ranks] int64 are the addresses, valid here, of the memories of all ranks, each of `memory_bytes`,
    zeroed."""

    def __init__(self, rank: int, places: torch.Tensor, max_bytes: int) -> None:
        self.rank, self.ranks, self.places = rank, places.numel(), places
        self.capacity = words_of_a_call(max_bytes)
        self.calls = torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=places.device)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """x contiguous, of whole words of 4 bytes -> the sum over the ranks, to the bit the same on each; a long one by several calls."""
        y = torch.empty_like(x)
        words, sums = x.view(-1).view(torch.int32), y.view(-1).view(torch.int32)
        for piece, out in zip(words.split(self.capacity), sums.split(self.capacity)):
            if piece.numel():
                _push_blocks[(triton.cdiv(piece.numel(), BLOCK),)](
                    piece, out, self.places, self.calls, piece.numel(), self.capacity, self.rank, self.ranks, KINDS[x.dtype], BLOCK,
                    MAX_PROGRAMS, num_warps=NUM_WARPS,
                )  # fmt: skip
        return y


def words_of_a_call(max_bytes: int) -> int:
    return min(max_bytes // 4, BLOCK * MAX_PROGRAMS)


def memory_bytes(num_ranks: int, max_bytes: int) -> int:
    """Of one rank, for calls of up to `max_bytes`."""
    return 8 * num_ranks * (words_of_a_call(max_bytes) + MAX_PROGRAMS)
