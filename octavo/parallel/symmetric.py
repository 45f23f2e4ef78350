"""Collectives of small tensors over memory that the GPUs of one host map into each other (PyTorch symmetric memory).

Three ways by size: one launch that pushes packets (`octavo.ops.triton.push`), PyTorch's one-shot sum, and above that NCCL. Multicast
of the switch is not used: it needs rights on the fabric that a shared host does not give.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

PUSH_BYTES = 1 << 19  # largest tensor that is pushed
ONE_SHOT_BYTES = 1 << 21  # and that PyTorch's one-shot sum takes
ALIGNED = 16  # bytes of which a tensor must be a multiple


@dataclass(frozen=True)
class Symmetric:
    """One rank's end of the shared memory of a group."""

    push: Any  # octavo.ops.triton.push.Push
    buffer: torch.Tensor  # of one-shot sums, uint8
    name: str  # of the group, as torch's operations want it
    memories: tuple[Any, ...]  # keep the mappings alive

    def sums(self, x: torch.Tensor) -> bool:
        """Whether `sum` takes x."""
        size = x.numel() * x.element_size()
        return x.is_contiguous() and size % ALIGNED == 0 and size <= max(self.push.max_bytes, self.buffer.numel())

    def gathers(self, x: torch.Tensor) -> bool:
        """Whether `gather` takes x."""
        size = x.numel() * x.element_size()
        return x.is_contiguous() and size % 4 == 0 and size <= self.push.max_bytes

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of x over the ranks, in a new tensor; every rank adds in the same order."""
        size = x.numel() * x.element_size()
        if size <= self.push.max_bytes:
            return self.push.sum(x)
        buffer = self.buffer.view(x.dtype)[: x.numel()]
        flat = x.view(-1)
        out = torch.empty_like(flat)
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(buffer, flat, "sum", self.name, out)
        return out.view(x.shape)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[ranks, *x.shape]: the x of all."""
        return self.push.gather(x)


def share_memory(group: dist.ProcessGroup, device: torch.device) -> Symmetric | None:
    """Map memory of all ranks into each; None, with the reason in the log, where that is not possible or gives wrong sums."""
    if device.type != "cuda":
        return None
    ours = _try_to_share(group, device)
    # All take the same way: a rank that waited for packets which another does not send would wait forever.
    good = torch.tensor([isinstance(ours, Symmetric)], dtype=torch.int32, device=device)
    dist.all_reduce(good, op=dist.ReduceOp.MIN, group=group)
    if good.item() and isinstance(ours, Symmetric):
        return ours if _right(ours, group, device) else None
    why = ours if isinstance(ours, str) else "another rank cannot share memory"
    log.warning("small sums over ranks go through NCCL, which takes longer: %s", why)
    return None


def _try_to_share(group: dist.ProcessGroup, device: torch.device) -> Symmetric | str:
    try:
        from torch.distributed import _symmetric_memory as symm_mem

        from octavo.ops.triton.push import Push

        packets_bytes = 16 * group.size() * PUSH_BYTES // 4
        packets = symm_mem.empty(packets_bytes, dtype=torch.uint8, device=device)
        packets.zero_()
        buffer = symm_mem.empty(ONE_SHOT_BYTES, dtype=torch.uint8, device=device)
        mapped = symm_mem.rendezvous(packets, group)
        also = symm_mem.rendezvous(buffer, group)
        places = torch.tensor(list(mapped.buffer_ptrs), dtype=torch.int64, device=device)
        torch.cuda.synchronize(device)
        dist.barrier(group)
        return Symmetric(Push(group.rank(), places, packets_bytes), buffer, group.group_name, (packets, mapped, also))
    except Exception as error:  # the operation is PyTorch's inner one, and hosts differ in what they allow
        return f"{type(error).__name__}: {error}"


def _right(ours: Symmetric, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether sums of several sizes are those of NCCL; the same answer on all ranks."""
    wrong = torch.zeros(1, dtype=torch.float32, device=device)
    for number, size in enumerate((8, 4096, 100_000, PUSH_BYTES // 2, ONE_SHOT_BYTES // 2) * 2):
        generator = torch.Generator(device).manual_seed(1000 * number + group.rank())
        x = torch.randint(-8, 9, (size,), generator=generator, device=device).to(torch.bfloat16)  # whose sums are exact
        expected = x.clone()
        dist.all_reduce(expected, group=group)
        wrong += (ours.sum(x) != expected).sum()
    dist.all_reduce(wrong, group=group)
    if wrong.item():
        log.warning("small sums over ranks go through NCCL: shared memory gave %d wrong numbers in its test", int(wrong.item()))
    return not wrong.item()
