"""Blocks between ranks, one rank at a time: what the others send lies there before it begins to wait."""

import pytest
import torch

from tests.interpreter import interpret

DEVICE = "cpu" if interpret() else "cuda"

from octavo.ops.triton.push_blocks import BLOCK, MAX_PROGRAMS, PushBlocks, memory_bytes  # noqa: E402

MAX_BYTES = 4 * 3 * BLOCK
# The interpreter cuts where bfloat16 should be rounded.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")


class Ranks:
    """Memories of several ranks in one process."""

    def __init__(self, num: int) -> None:
        self.memories = [torch.zeros(memory_bytes(num, MAX_BYTES) // 4, dtype=torch.int32, device=DEVICE) for _ in range(num)]
        places = torch.tensor([memory.data_ptr() for memory in self.memories], device=DEVICE)
        self.ends = [PushBlocks(rank, places, MAX_BYTES) for rank in range(num)]

    def data(self, rank: int, call: int, source: int) -> torch.Tensor:
        """The words that a rank has from another for one call."""
        num = len(self.ends)
        return self.memories[rank][: 2 * num * MAX_BYTES // 4].view(2, num, -1)[call & 1, source]

    def flags(self, rank: int, call: int, source: int) -> torch.Tensor:
        num = len(self.ends)
        return self.memories[rank][2 * num * MAX_BYTES // 4 :].view(2, num, MAX_PROGRAMS)[call & 1, source]

    def arrive(self, rank: int, parts: list[torch.Tensor]) -> None:
        """What all others send to a rank for its next call. Every program counts its own calls."""
        for source, part in enumerate(parts):
            if source == rank:
                continue
            words = part.view(-1).view(torch.int32)
            for program, begin in enumerate(range(0, words.numel(), BLOCK)):
                call = int(self.ends[rank].calls[program]) + 1
                piece = words[begin : begin + BLOCK]
                self.data(rank, call, source)[begin : begin + piece.numel()] = piece
                self.flags(rank, call, source)[program] = call


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [2, 3])
def test_sums_of_several_calls(dtype, num):
    ranks = Ranks(num)
    for num_words in (6, 2 * BLOCK + 10, 3 * BLOCK, 2):  # grids of one, several and one program again
        parts = [torch.randn(num_words * 4 // dtype.itemsize, device=DEVICE).to(dtype) for _ in range(num)]
        expected = torch.stack([part.float() for part in parts]).sum(0).to(dtype)
        for rank, end in enumerate(ranks.ends):
            ranks.arrive(rank, parts)
            torch.testing.assert_close(end.sum(parts[rank]), expected, atol=0, rtol=0.01 if num > 2 else 0)


def test_what_is_sent_is_what_the_others_wait_for():
    ranks = Ranks(2)
    x = torch.randn(BLOCK + 10, device=DEVICE)
    ranks.arrive(0, [x, x + 1])
    assert torch.equal(ranks.ends[0].sum(x), x + (x + 1))
    words = x.view(torch.int32)
    assert torch.equal(ranks.data(1, 1, 0)[: words.numel()], words)
    assert not ranks.data(1, 1, 0)[words.numel() :].any()
    assert ranks.flags(1, 1, 0)[:3].tolist() == [1, 1, 0]


def test_what_one_call_does_not_take_goes_in_several():
    ranks = Ranks(2)
    x, other = (torch.randn(MAX_BYTES // 4 + 5, device=DEVICE) for _ in range(2))
    first, rest = x.split(MAX_BYTES // 4), other.split(MAX_BYTES // 4)
    ranks.arrive(0, [first[0], rest[0]])
    ranks.data(0, 2, 1)[:5] = rest[1].view(torch.int32)  # the first program's second call
    ranks.flags(0, 2, 1)[0] = 2
    assert torch.equal(ranks.ends[0].sum(x), x + other)
