"""Sums and gathers of small tensors over the GPUs of one host, in one launch and one trip over the link.

Every rank writes its part straight into the memory of all others, each word of data together with the number of the call in one 8-byte
store, which arrives whole. A reader polls its own memory until the number is there; nobody waits at a barrier. (The protocol is the one
that NCCL calls LL: https://github.com/NVIDIA/nccl; here without its rings.) For n bytes on R ranks a rank sends 2 n (R - 1) bytes.

Memory of one rank, as words of 8 bytes: [2, R, capacity], by the call's parity, then by who wrote. Two calls suffice: a program that
begins call c + 2 has ended c + 1, for which it needed what its twin on each other rank sent after ending c; so nobody still reads c.
A program counts its own calls, and always owns the same words, so that grids of different sizes may follow each other.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.triton.words import KINDS, add_words, as_words

BLOCK = 512  # words of data of a program
MAX_PROGRAMS = 512


@triton.jit
def _packets(place, at, inside, call):
    """Words of data [BLOCK] int32 from packets, as soon as all are of this call."""
    got = tl.load(place + at, mask=inside, other=call.to(tl.int64) << 32, volatile=True)
    while tl.max(((got >> 32).to(tl.int32) != call).to(tl.int32), axis=0) != 0:
        got = tl.load(place + at, mask=inside, other=call.to(tl.int64) << 32, volatile=True)
    return got.to(tl.int32)


@triton.jit
def _push(
    x, y, places, calls, num_words, capacity, RANK: tl.constexpr, RANKS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KIND: "gather", or as what words are summed (`KINDS`)."""
    program = tl.program_id(0)
    call = tl.load(calls + program) + 1
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_words
    word = tl.load(x + at, mask=inside, other=0)
    packet = (call.to(tl.int64) << 32) | (word.to(tl.int64) & 0xFFFFFFFF)
    half = (call & 1) * RANKS * capacity
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = tl.load(places + other).to(tl.pointer_type(tl.int64))
            tl.store(theirs + half + RANK * capacity + at, packet, mask=inside)
    mine = tl.load(places + RANK).to(tl.pointer_type(tl.int64))
    low = tl.zeros((BLOCK,), tl.float32)
    high = tl.zeros((BLOCK,), tl.float32)
    for source in tl.static_range(RANKS):  # in the order of ranks, so that all have the same sum
        if source == RANK:
            part = word
        else:
            part = _packets(mine + half + source * capacity, at, inside, call)
        if KIND == "gather":
            tl.store(y + source * num_words + at, part, mask=inside)
        else:
            low, high = add_words(low, high, part, KIND)
    if KIND != "gather":
        tl.store(y + at, as_words(low, high, KIND), mask=inside)
    tl.store(calls + program, call)


class Push:
    """One rank's end. `places` [ranks] int64 are the addresses, valid here, of the memories of all ranks, each of `num_bytes`, zeroed."""

    def __init__(self, rank: int, places: torch.Tensor, num_bytes: int) -> None:
        self.rank, self.ranks, self.places = rank, places.numel(), places
        self.capacity = min(num_bytes // (16 * self.ranks), BLOCK * MAX_PROGRAMS)  # words of data of one call
        self.calls = torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=places.device)

    @property
    def max_bytes(self) -> int:
        """The most that one call takes."""
        return 4 * self.capacity

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """x contiguous, of an even number of elements where they have two bytes -> the sum over the ranks, to the bit the same on each."""
        y = torch.empty_like(x)
        self._launch(x, y, KINDS[x.dtype])
        return y

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """x contiguous, of whole words of 4 bytes -> [ranks, *x.shape]."""
        y = x.new_empty((self.ranks, *x.shape))
        self._launch(x, y, "gather")
        return y

    def _launch(self, x: torch.Tensor, y: torch.Tensor, kind: str) -> None:
        words = x.view(-1).view(torch.int32)
        num = words.numel()
        assert num <= self.capacity, f"{num} words are more than {self.capacity}"
        if num:
            _push[(triton.cdiv(num, BLOCK),)](
                words, y.view(-1).view(torch.int32), self.places, self.calls, num, self.capacity, self.rank, self.ranks, kind, BLOCK,
                num_warps=4,
            )  # fmt: skip
