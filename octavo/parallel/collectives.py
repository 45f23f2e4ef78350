"""Groups of several ranks over torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from octavo import env
from octavo.parallel.meeting import DATA, PIPELINE, TENSOR, TIMEOUT_S, Layout, Meeting
from octavo.parallel.mesh import Group, Mesh
from octavo.parallel.symmetric import Symmetric, share_memory

# Newer names of the same functions, and the older ones, which warn there.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def join(meeting: Meeting, rank: int, device: torch.device) -> Mesh:
    """The groups of this rank. Called once by every rank, in its own process; ends when all have come."""
    patience = timedelta(seconds=meeting.timeout_s)
    if meeting.layout.num_ranks == 1:
        return Mesh()
    env.keep_multicast_off()
    store = TCPStore(meeting.host, meeting.port, is_master=False, timeout=patience)
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=meeting.layout.num_ranks, timeout=patience,
        device_id=device if on_gpu else None,
    )  # fmt: skip
    return groups_of(meeting.layout, rank, device, patience)


def groups_of(layout: Layout, rank: int, device: torch.device, patience: timedelta) -> Mesh:
    """The groups of this rank in a world that has met; every rank of it calls this."""
    mine = partial(_join_groups, rank=rank, device=device, patience=patience, made={})
    return Mesh(
        tp=mine(layout.groups(TENSOR), near=True), pp=mine(layout.groups(PIPELINE)), dp=mine(layout.groups(DATA), near=layout.experts),
        ep=mine(layout.groups(TENSOR, DATA)) if layout.experts else Group(),
    )  # fmt: skip


@dataclass(frozen=True)
class Host:
    """Keeps the store of a meeting, for as long as this object lives."""

    meeting: Meeting
    store: Any  # TCPStore

    @staticmethod
    def open(layout: Layout, host: str = "127.0.0.1", port: int = 0, timeout_s: float = TIMEOUT_S) -> Host:
        """Listen on `port`, or on any free one."""
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
        return Host(Meeting(host, store.port, layout, timeout_s), store)


def _join_groups(
    groups: Sequence[Sequence[int]],
    rank: int,
    device: torch.device,
    patience: timedelta,
    made: dict[tuple[int, ...], Any],
    near: bool = False,
) -> Group:
    """This rank's one of the groups. All ranks make all groups, as torch.distributed wants it. `near`: they exchange small tensors in every
    layer, and share memory for that where they are on one host. Ranks that are `made` to a group already are not connected twice."""
    mine = Group()
    for ranks in groups:
        if len(ranks) == 1:
            continue
        key = tuple(ranks)
        if key not in made:
            made[key] = dist.new_group(list(ranks), timeout=patience)
        if rank in ranks:
            mine = ProcessGroup(key.index(rank), len(key), made[key], share_memory(made[key], device) if near else None)
    return mine


class RankLost(RuntimeError):
    """A collective could not end: another rank is gone, or did not come in time."""

    consequence = True  # the other one says why


F = TypeVar("F", bound=Callable[..., Any])


def _named(operation: F) -> F:
    """An error of the operation says which rank was in it, and where."""

    @wraps(operation)
    def call(self: ProcessGroup, *args: Any) -> Any:
        try:
            return operation(self, *args)
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            name = operation.__name__
            raise RankLost(f"rank {self.rank} of {self.size} on host {platform.node()} was in {name}: {error}") from error

    return call  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class ProcessGroup(Group):
    """Several ranks, each in a process of its own. On a GPU all calls are launches on the current stream, which a graph can capture."""

    group: Any = None  # dist.ProcessGroup
    symmetric: Symmetric | None = None  # for small tensors

    @_named
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.sums(x):
            return self.symmetric.sum(x)
        x = x.contiguous()
        dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.gathers(x):
            parts = self.symmetric.gather(x)
        else:
            parts = self.gather_rows(x).view(self.size, *x.shape)
        return parts.movedim(0, -2).flatten(-2)  # [..., size * n]

    @_named
    def gather_rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.gathers(x):
            return self.symmetric.gather(x).flatten(0, 1)
        whole = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        _all_gather(whole, x.contiguous(), group=self.group)
        return whole

    @_named
    def sum_rows(self, x: torch.Tensor) -> torch.Tensor:
        if self.symmetric is not None and self.symmetric.sums_for_rows(x):
            return self.symmetric.sum(x).chunk(self.size)[self.rank]
        part = x.new_empty((x.shape[0] // self.size, *x.shape[1:]))
        _reduce_scatter(part, x.contiguous(), group=self.group)
        return part

    @_named
    def exchange(self, x: torch.Tensor, given: list[int] | None = None, taken: list[int] | None = None) -> torch.Tensor:
        received = x.new_empty((x.shape[0] if taken is None else sum(taken), *x.shape[1:]))
        dist.all_to_all_single(received, x.contiguous(), taken, given, group=self.group)
        return received

    def best(self, tokens: torch.Tensor, peaks: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        mine = torch.stack((peaks.view(torch.int32), (tokens + first).to(torch.int32)), dim=-1)  # [N, 2], in place of all logits
        found = self.all_gather(mine).view(-1, self.size, 2)
        all_peaks = found[:, :, 0].contiguous().view(torch.float32)  # [N, size]
        winner = all_peaks.argmax(-1, keepdim=True)
        return found[:, :, 1].gather(1, winner)[:, 0].to(torch.int64), all_peaks.gather(1, winner)[:, 0]

    @_named
    def agreed(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, group=self.group, group_src=0)
        return x

    @_named
    def send(self, x: torch.Tensor, to: int) -> None:
        dist.send(x.contiguous(), group=self.group, group_dst=to)

    @_named
    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        dist.recv(x, group=self.group, group_src=source)
        return x
