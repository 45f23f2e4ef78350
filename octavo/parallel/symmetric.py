"""Collectives of small tensors over memory that the GPUs of one host map into each other (PyTorch symmetric memory).

Three ways by size: packets that carry the number of their call (`octavo.ops.triton.push`), blocks with a flag each (`push_blocks`), and
above that NCCL. Multicast of the switch is not used: it needs rights on the fabric that a shared host does not give.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

PUSH_BYTES = 1 << 19  # largest tensor that goes in packets
BLOCKS_BYTES = 1 << 24  # most that goes in blocks at once
ONE_TRIP_BYTES = 1 << 23  # most that a rank sends all others of its part, where there are more than two: rings send less in all
ROWS_BYTES = 1 << 22  # largest tensor that is summed whole where each rank needs some rows of it only: one trip is quicker than NCCL's
# Numbers of 16 bits that a start tries it with: whole blocks and parts of them, by the kernels that are there compiled (words by sixteens).
TRIED = (32, 4096, 100_000, PUSH_BYTES // 2, PUSH_BYTES, 1_000_000, BLOCKS_BYTES)
ALIGNED = 16  # bytes of which a tensor must be a multiple
BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one on each host


@dataclass(frozen=True)
class Symmetric:
    """One rank's end of the shared memory of a group."""

    push: Any  # octavo.ops.triton.push.Push
    blocks: Any  # octavo.ops.triton.push_blocks.PushBlocks
    memories: tuple[Any, ...]  # keep the mappings alive

    def sums(self, x: torch.Tensor) -> bool:
        """Whether `sum` takes x."""
        size = x.numel() * x.element_size()
        others = self.blocks.ranks - 1
        return x.is_contiguous() and size % ALIGNED == 0 and (others == 1 or size * others <= ONE_TRIP_BYTES)

    def sums_for_rows(self, x: torch.Tensor) -> bool:
        """Whether `sum` takes x, and is worth it where each rank needs a part of the rows."""
        return self.sums(x) and x.numel() * x.element_size() <= ROWS_BYTES

    def gathers(self, x: torch.Tensor) -> bool:
        """Whether `gather` takes x."""
        size = x.numel() * x.element_size()
        return x.is_contiguous() and size % 4 == 0 and size <= self.push.max_bytes

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over the ranks, in a new tensor; every rank adds in the same order."""
        fits = x.numel() * x.element_size() <= self.push.max_bytes
        return self.push.sum(x) if fits else self.blocks.sum(x)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[ranks, *x.shape]: the x of all."""
        return self.push.gather(x)


def share_memory(group: dist.ProcessGroup, device: torch.device) -> Symmetric | None:
    """Map memory of all ranks into each; None, with the reason in the log, where that is not possible or gives wrong sums."""
    if device.type != "cuda":
        return None
    ours = _try_to_share(group, device) if _on_one_host(group, device) else "they are on several hosts"
    # All take the same way: a rank that waited for packets which another does not send would wait forever.
    good = torch.tensor([isinstance(ours, Symmetric)], dtype=torch.int32, device=device)
    dist.all_reduce(good, op=dist.ReduceOp.MIN, group=group)
    if good.item() and isinstance(ours, Symmetric):
        return ours if _right(ours, group, device) else None
    why = ours if isinstance(ours, str) else "another rank cannot share memory"
    log.warning("small sums over ranks go through NCCL, which takes longer: %s", why)
    return None


def _on_one_host(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all ranks run under one kernel; the same answer on all."""
    name = BOOT.read_text() if BOOT.exists() else platform.node()
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    ends = torch.tensor([number, -number], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    return int(ends[0].item()) == -int(ends[1].item())


def _try_to_share(group: dist.ProcessGroup, device: torch.device) -> Symmetric | str:
    try:
        from torch.distributed import _symmetric_memory as symm_mem

        from octavo.ops.triton.push import Push
        from octavo.ops.triton.push_blocks import PushBlocks, memory_bytes

        ranks = group.size()
        sizes = (16 * ranks * PUSH_BYTES // 4, memory_bytes(ranks, BLOCKS_BYTES))
        memories = [symm_mem.empty(size, dtype=torch.uint8, device=device).zero_() for size in sizes]
        mapped = [symm_mem.rendezvous(memory, group) for memory in memories]
        packets, blocks = (torch.tensor(list(one.buffer_ptrs), dtype=torch.int64, device=device) for one in mapped)
        torch.cuda.synchronize(device)
        dist.barrier(group)
        push = Push(group.rank(), packets, sizes[0])
        return Symmetric(push, PushBlocks(group.rank(), blocks, BLOCKS_BYTES), (*memories, *mapped))
    except Exception as error:  # the operation is PyTorch's inner one, and hosts differ in what they allow
        return f"{type(error).__name__}: {error}"


def _right(ours: Symmetric, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether sums and gathers of several sizes are those of NCCL; the same answer on all ranks."""
    wrong = torch.zeros(1, dtype=torch.float32, device=device)
    for number, size in enumerate(TRIED * 2):
        generator = torch.Generator(device).manual_seed(1000 * number + group.rank())
        x = torch.randint(-8, 9, (size,), generator=generator, device=device).to(torch.bfloat16)  # whose sums are exact
        expected = x.clone()
        dist.all_reduce(expected, group=group)
        wrong += (ours.sum(x) != expected).sum()
        if ours.gathers(x):
            parts = [torch.empty_like(x) for _ in range(group.size())]
            dist.all_gather(parts, x, group=group)
            wrong += (ours.gather(x) != torch.stack(parts)).sum()
    dist.all_reduce(wrong, group=group)
    if wrong.item():
        log.warning("small sums over ranks go through NCCL: shared memory gave %d wrong numbers in its test", int(wrong.item()))
    return not wrong.item()
