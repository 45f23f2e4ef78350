"""Packets between ranks, one rank at a time: what the others send lies there before it begins to wait."""

import pytest
import torch

from tests.interpreter import interpret

DEVICE = "cpu" if interpret() else "cuda"

from octavo.ops.triton.push import BLOCK, Push  # noqa: E402

MEMORY_BYTES = 3 << 15
# The interpreter cuts where bfloat16 should be rounded.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")


class Ranks:
    """Memories of several ranks in one process."""

    def __init__(self, num: int) -> None:
        self.memories = [torch.zeros(MEMORY_BYTES // 8, dtype=torch.int64, device=DEVICE) for _ in range(num)]
        places = torch.tensor([memory.data_ptr() for memory in self.memories], device=DEVICE)
        self.ends = [Push(rank, places, MEMORY_BYTES) for rank in range(num)]

    def packets(self, memory: torch.Tensor, call: int, source: int) -> torch.Tensor:
        """The words [capacity] that a rank has from another for one call."""
        return memory.view(2, len(self.ends), -1)[call & 1, source]

    def arrive(self, rank: int, call: int, parts: list[torch.Tensor]) -> None:
        """What all others send to a rank."""
        for source, part in enumerate(parts):
            words = part.view(-1).view(torch.int32).to(torch.int64) & 0xFFFFFFFF
            if source != rank:
                self.packets(self.memories[rank], call, source)[: words.numel()] = call << 32 | words


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num", [2, 3])
def test_sums_of_several_calls(dtype, num):
    ranks = Ranks(num)
    sizes = (6, 2 * BLOCK + 10, 2)  # grids of one, several and one program again
    for call, size in enumerate(sizes, start=1):
        if size == sizes[1] and dtype is torch.float32:
            size //= 2
        parts = [torch.randn(size, device=DEVICE).to(dtype) for _ in range(num)]
        expected = torch.stack([part.float() for part in parts]).sum(0).to(dtype)
        programs = -(-size * dtype.itemsize // (4 * BLOCK))
        for rank, end in enumerate(ranks.ends):
            counts = end.calls[:programs].tolist()  # every program counts its own calls
            assert counts[0] == call - 1
            for program, count in enumerate(counts):
                at = slice(program * BLOCK * 4 // dtype.itemsize, (program + 1) * BLOCK * 4 // dtype.itemsize)
                for source, part in enumerate(parts):
                    words = part[at].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
                    place = ranks.packets(ranks.memories[rank], count + 1, source)[program * BLOCK :]
                    if source != rank:
                        place[: words.numel()] = (count + 1) << 32 | words
            got = end.sum(parts[rank])
            torch.testing.assert_close(got, expected, atol=0, rtol=0.01 if num > 2 else 0)


def test_what_is_sent_is_what_the_others_wait_for():
    ranks = Ranks(2)
    x = torch.randn(10, device=DEVICE)
    ranks.arrive(0, 1, [x, x + 1])
    got = ranks.ends[0].gather(x)
    assert torch.equal(got, torch.stack((x, x + 1)))
    sent = ranks.packets(ranks.memories[1], 1, 0)[:10]
    assert torch.equal(sent >> 32, torch.ones_like(sent))
    assert torch.equal((sent & 0xFFFFFFFF).to(torch.int32), x.view(torch.int32))
    assert not ranks.packets(ranks.memories[1], 1, 0)[10:].any()


def test_too_much_for_one_call_is_an_error():
    end = Ranks(2).ends[0]
    with pytest.raises(AssertionError, match="words are more than"):
        end.sum(torch.zeros(end.max_bytes // 4 + 1, device=DEVICE))
